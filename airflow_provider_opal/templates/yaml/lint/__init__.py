"""`opal dag lint` and `render`: what holds between files, DAGs of Python and real tables, and what comes out of them."""

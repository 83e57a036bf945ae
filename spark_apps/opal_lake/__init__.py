"""The format of Opal tables and its rules, over Arrow, numpy and roaring bitmaps. No Spark, no Airflow."""

__version__ = "0.1.0"

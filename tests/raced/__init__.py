"""Lives of tables in which every operation may run inside any store call of another one."""

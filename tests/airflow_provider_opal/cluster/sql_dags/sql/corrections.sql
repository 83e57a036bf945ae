-- The first try waits in its third statement until it is killed
UPDATE lake.shop.stock SET amount = amount + CAST(:more AS INT);

INSERT INTO lake.shop.moves
SELECT id, at, amount FROM lake.shop.stock WHERE id < 3;

SELECT {% if ti.try_number == 1 %}java_method('java.lang.Thread', 'sleep', 600000L)
{% else %}'awake'{% endif %} AS state;

UPDATE lake.shop.stock SET amount = amount * 2;
DELETE FROM lake.shop.stock WHERE amount > {{ params.more }} * 5;

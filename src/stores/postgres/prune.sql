-- Looks at $2 rows after the key $1 and deletes those that are not needed any more, but none that is locked. Answers the
-- last key looked at (null: there are no more) and how many were deleted.
WITH chunk AS MATERIALIZED (
  SELECT key, expires FROM @table@ WHERE key > $1 ORDER BY key LIMIT $2
), unused AS MATERIALIZED (
  SELECT t.key FROM @table@ t
  WHERE t.key IN (SELECT key FROM chunk WHERE expires < @now@) AND t.expires < @now@
  FOR UPDATE SKIP LOCKED
), deleted AS (
  DELETE FROM @table@ t USING unused WHERE t.key = unused.key AND t.expires < @now@ RETURNING t.key
), forgotten AS (
  DELETE FROM @reports@ r USING deleted WHERE r.key = deleted.key
)
SELECT (SELECT max(key) FROM chunk) AS last, (SELECT count(*)::int FROM deleted) AS deleted

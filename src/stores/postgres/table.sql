-- The state of bucket instances, the heartbeats of shaper's instances, and what is known of upstreams' limits (where
-- postgres-decide.sql says what the columns are). After a crash of the server it is empty, which is what is wanted of state
-- that leaks away. Moments are in ms since 2025 by the server's clock.
--
-- Rows are updated all the time and no indexed column ever changes: with half of each page free an update stays on its
-- page (HOT) and needs no vacuum. What vacuum is for is rows that were deleted.
CREATE UNLOGGED TABLE IF NOT EXISTS @table@ (
  key text COLLATE "C" PRIMARY KEY,
  level double precision NOT NULL,     -- cost units at `at`
  at double precision NOT NULL,
  free double precision NOT NULL,      -- when the next slot is
  rate double precision NOT NULL,      -- cost units per ms, that `free` was counted with
  blocked double precision NOT NULL,   -- until when all is rejected; Infinity: until drained; -Infinity: not at all
  expires double precision NOT NULL    -- from when on it is as good as new
) WITH (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_vacuum_threshold = 2000,
  autovacuum_vacuum_cost_delay = 0
)

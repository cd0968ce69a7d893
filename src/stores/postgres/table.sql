-- The state of bucket instances, the heartbeats of shaper's instances, and the limits of upstreams (decide.sql says which
-- columns these use; table-leases.sql adds those of leases). After a crash of the server it is empty: the state would leak
-- away anyway. Moments are in ms since 2025 by the server's clock.
--
-- Rows are updated all the time and no indexed column ever changes. With half of each page free an update stays on its page
-- (HOT) and needs no vacuum. Vacuum is for deleted rows.
CREATE UNLOGGED TABLE IF NOT EXISTS @table@ (
  key text COLLATE "C" PRIMARY KEY,
  level double precision NOT NULL,     -- cost units at `at`
  at double precision NOT NULL,
  free double precision NOT NULL,      -- when what was granted has drained
  rate double precision NOT NULL,      -- cost units per ms that `free` was counted with
  blocked double precision NOT NULL,   -- when a block ends; Infinity: when drained; -Infinity: no block
  expires double precision NOT NULL    -- when it is not needed any more
) WITH (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_vacuum_threshold = 2000,
  autovacuum_vacuum_cost_delay = 0
);

-- What instances show of themselves, as texts: their present state, and parts of their last hour.
CREATE UNLOGGED TABLE IF NOT EXISTS @views@ (
  id text COLLATE "C" PRIMARY KEY,
  at double precision NOT NULL,
  text text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 200, toast.autovacuum_vacuum_threshold = 1000);

CREATE UNLOGGED TABLE IF NOT EXISTS @hours@ (
  id text COLLATE "C" PRIMARY KEY,
  at double precision NOT NULL,
  text text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.2, autovacuum_vacuum_threshold = 200, toast.autovacuum_vacuum_threshold = 1000);

-- Overrides of limits. They outlive a crash of the server.
CREATE TABLE IF NOT EXISTS @overrides@ (
  name text COLLATE "C" PRIMARY KEY,   -- of bucket and key
  ends double precision NOT NULL,
  text text NOT NULL                   -- the rest of it as JSON
);

-- Secrets that all instances have, such as the key of tickets.
CREATE TABLE IF NOT EXISTS @secrets@ (
  name text COLLATE "C" PRIMARY KEY,
  text text NOT NULL
);

-- Reports on leases that wait until somebody decides on them (deciding.ts). No indexed column changes here either.
CREATE UNLOGGED TABLE IF NOT EXISTS @reports@ (
  key text COLLATE "C",
  id text COLLATE "C",                 -- of the connection
  number double precision NOT NULL,    -- a new one for each report of a connection
  deadline double precision NOT NULL,
  asked bytea NOT NULL,
  answer bytea,
  PRIMARY KEY (key, id)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200)

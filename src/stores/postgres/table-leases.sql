-- What instances lease of a bucket instance, the room that is kept of it, and a gap in its schedule. Only the owner of a table may add columns, so this runs only where they are missing.
ALTER TABLE @table@
  -- Cost units per ms by which the level does not drain.
  ADD COLUMN IF NOT EXISTS leased_rate double precision NOT NULL DEFAULT 0,
  -- When all that is leased ends. -Infinity: nothing is leased.
  ADD COLUMN IF NOT EXISTS leased_until double precision NOT NULL DEFAULT '-Infinity',
  -- lease.sql says what is in it.
  ADD COLUMN IF NOT EXISTS lease double precision[],
  -- Room that is kept from newcomers, in cost units, until `kept_until`. That is when all promises are over. -Infinity: there are none.
  ADD COLUMN IF NOT EXISTS kept double precision NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS kept_until double precision NOT NULL DEFAULT '-Infinity',
  -- A gap in the schedule, before `free`: from here to here nothing was granted.
  ADD COLUMN IF NOT EXISTS gap_from double precision NOT NULL DEFAULT '-Infinity',
  ADD COLUMN IF NOT EXISTS gap_until double precision NOT NULL DEFAULT '-Infinity'

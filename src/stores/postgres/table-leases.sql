-- What instances lease of a bucket instance, and the room that is kept of it. Only the owner of a table may add columns, so this runs only where they are missing.
ALTER TABLE @table@
  -- Cost units per ms by which the level does not drain.
  ADD COLUMN IF NOT EXISTS leased_rate double precision NOT NULL DEFAULT 0,
  -- When all that is leased ends. -Infinity: nothing is leased.
  ADD COLUMN IF NOT EXISTS leased_until double precision NOT NULL DEFAULT '-Infinity',
  -- Cost units that are set apart by then: the level does not drain below.
  ADD COLUMN IF NOT EXISTS leased_room double precision NOT NULL DEFAULT 0,
  -- What is leased and promised. The codecs of src/decider say what is in it. Null: nothing.
  ADD COLUMN IF NOT EXISTS leases double precision[],
  ADD COLUMN IF NOT EXISTS promises double precision[],
  -- Room that is kept from newcomers, in cost units, until `kept_until`. That is when all promises are over. -Infinity: there are none.
  ADD COLUMN IF NOT EXISTS kept double precision NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS kept_until double precision NOT NULL DEFAULT '-Infinity'

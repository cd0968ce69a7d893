import t from 'tap'
import { faults, parse } from './sample.js'

const file = (bucket: object, tiers: unknown[], routes?: object[]) => ({
  upstream: 'echo:',
  buckets: { client: { rate: '5/s', ...bucket, tiers } },
  ...(routes && { routes }),
})
const tiers = (bucket: object, ...tiers: object[]) => parse(file(bucket, tiers)).buckets[0]!.tiers

t.test('a tier inherits what it leaves out', async t => {
  const found = tiers(
    { capacity: 10, overflow: 'fill', blockFor: '30s', weight: 2, maxInFlight: 3, burst: 4 },
    { name: 'gold', keys: ['a', 'b'], rate: '50/s' },
    {
      name: 'silver',
      header: { 'X-Plan': 'Silver' },
      capacity: 20,
      weight: 3,
      maxInFlight: 7,
      burst: 8,
      priority: 6,
    },
  )
  const common = { name: 'client', overflow: 'fill', minShare: 0.05, blockFor: 30_000 }
  t.strictSame(found, [
    {
      name: 'gold',
      keys: ['a', 'b'],
      limits: { ...common, tier: 'gold', rate: 0.05, capacity: 10, burst: 4, maxInFlight: 3 },
      weight: 2,
    },
    {
      name: 'silver',
      header: { 'x-plan': 'Silver' },
      limits: { ...common, tier: 'silver', rate: 0.005, capacity: 20, burst: 8, maxInFlight: 7 },
      weight: 3,
      priority: 6,
    },
  ])
  t.notOk('weight' in tiers({}, { name: 'gold', keys: ['a'], rate: 9 })[0]!)
})

t.test('the capacity of a tier', async t => {
  const capacity = (bucket: object, tier: object) =>
    tiers(bucket, { name: 'x', keys: ['a'], ...tier })[0]?.limits.capacity
  t.equal(capacity({ capacity: 10 }, { rate: '50/s', capacity: 7 }), 7, 'its own')
  t.equal(capacity({ capacity: 10 }, { rate: '50/s' }), 10, "the bucket's")
  t.equal(capacity({ maxDelay: '2s' }, { rate: '50/s' }), 100, 'as much as keeps the longest wait')
  t.equal(capacity({}, { rate: '50/s' }), 50, "one second's worth")
  t.equal(capacity({}, { rate: '6/30s' }), 1, 'at least 1')
  t.equal(capacity({}, { weight: 2 }), 5)
  t.equal(capacity({}, { maxInFlight: 2 }), 5)
  t.equal(capacity({}, { burst: 8 }), 8, 'at least its burst')
  t.equal(capacity({ burst: 8 }, { rate: '2/s' }), 8)
  t.equal(capacity({ burst: 8 }, { burst: 2 }), 5)
  t.equal(capacity({ maxDelay: '2s' }, { burst: 80 }), 10, 'unless the longest wait is given')
})

t.test('tiers that make no sense', async t => {
  t.same(faults(file({}, [{ name: 'gold', rate: '50/s' }])), [
    'buckets.client.tiers[0]: this tier has no members; add e.g. "keys": ["customer-1"] or "header": { "x-plan": "gold" }',
  ])
  t.same(faults(file({}, [{ name: 'gold', keys: ['a'] }])), [
    'buckets.client.tiers[0]: changes nothing; add a rate, a capacity, a burst, a maxInFlight, a weight or a priority, or remove the tier',
  ])
  t.same(faults(file({}, [{ name: 'gold', keys: [], rate: 9 }])), [
    'buckets.client.tiers[0].keys: the list is empty; use e.g. ["customer-1"]',
  ])
  t.same(faults(file({}, [{ name: 'gold', header: {}, rate: 9 }])), [
    'buckets.client.tiers[0].header: the object is empty; use e.g. { "x-plan": "gold" }',
  ])
  t.same(faults(file({}, [{ name: 'gold', header: { 'a b': 'x', c: 5 }, rate: 9 }])), [
    'buckets.client.tiers[0].header.c: a number is not a header value; use a string, e.g. "gold"',
  ])
  t.same(faults(file({}, [{ name: 'gold', header: { 'a b': 'x' }, rate: 9 }])), [
    'buckets.client.tiers[0].header["a b"]: "a b" is not a header name; use e.g. "x-api-key"',
  ])
  t.same(faults(file({}, [5, { name: 'a b', keys: ['a'], rate: 9 }, { keys: ['b'], weight: 0 }])), [
    'buckets.client.tiers[0]: a number is not a tier; use e.g. { "name": "gold", "header": { "x-plan": "gold" }, "rate": "50/s" }',
    'buckets.client.tiers[1].name: "a b" is not a name; use 1 to 64 letters, digits, "_", "." or "-"',
    'buckets.client.tiers[2].name: missing; use 1 to 64 letters, digits, "_", "." or "-"',
    'buckets.client.tiers[2].weight: 0 is not a weight; use a number above 0, e.g. 2',
  ])
})

t.test('names and keys given twice', async t => {
  const gold = { name: 'gold', rate: 9 }
  t.same(
    faults(
      file({}, [
        { ...gold, keys: ['a'] },
        { ...gold, keys: ['b'] },
      ]),
    ),
    ['buckets.client.tiers[1].name: "gold" is already tiers[0]; use another name'],
  )
  t.same(
    faults(
      file({}, [
        { ...gold, keys: ['a', 'b'] },
        { name: 'silver', rate: 8, keys: ['c', 'b', 'c'] },
      ]),
    ),
    [
      'buckets.client.tiers[1].keys[1]: the same key as tiers[0].keys[1]; remove one',
      'buckets.client.tiers[1].keys[2]: the same key as tiers[1].keys[0]; remove one',
    ],
  )
  t.same(
    faults(
      file({}, [
        { rate: 9, keys: ['a'] },
        { name: 'silver', rate: 8, keys: ['a'] },
      ]),
    ),
    [
      'buckets.client.tiers[0].name: missing; use 1 to 64 letters, digits, "_", "." or "-"',
      'buckets.client.tiers[1].keys[0]: the same key as tiers[0].keys[0]; remove one',
    ],
  )
  const buckets = {
    a: { rate: 1, tiers: [{ ...gold, keys: ['a'] }] },
    b: { rate: 1, tiers: [{ ...gold, keys: ['a'] }] },
  }
  t.same(faults({ upstream: 'echo:', buckets }), [], 'each bucket has its own')
})

t.test('costs have to fit every tier', async t => {
  const free = { name: 'free', keys: ['a'], capacity: 3 }
  t.same(faults(file({ capacity: 10 }, [free], [{ cost: 5 }])), [
    'routes[0].cost: 5 can never fit tier "free" of bucket "client" (capacity 3); raise the capacity or lower the cost',
  ])
  t.same(
    faults(
      file(
        { capacity: 10 },
        [free],
        [
          { cost: { POST: 5 }, mode: 'meter' },
          { cost: 5, mode: 'off' },
        ],
      ),
    ),
    [
      'routes[0].cost.POST: 5 can never fit tier "free" of bucket "client" (capacity 3); raise the capacity or lower the cost',
    ],
  )
  t.same(faults(file({}, [{ name: 'free', keys: ['a'], rate: '2/s' }], [{ cost: 5 }])), [
    'routes[0].cost: 5 can never fit tier "free" of bucket "client" (capacity 2); raise the capacity or lower the cost',
  ])
  t.same(
    faults(file({ capacity: 3 }, [{ name: 'gold', keys: ['a'], rate: '9/s' }], [{ cost: 5 }])),
    ['routes[0].cost: 5 can never fit bucket "client" (capacity 3); raise the capacity or lower the cost'],
    'a capacity that is inherited is told once',
  )
  t.same(faults(file({}, [{ name: 'free', keys: ['a'], capacity: 0.5 }])), [
    'buckets.client.tiers[0].capacity: a capacity of 0.5 can never fit a request of cost 1; raise it',
  ])
  t.same(faults(file({ maxDelay: '1s' }, [{ name: 'free', keys: ['a'], rate: '1/2s' }])), [
    'buckets.client.tiers[0].rate: a capacity of 0.5 can never fit a request of cost 1; raise it',
  ])
})

t.test('an invalid value is not reported as missing', async t => {
  const free = { name: 'free', keys: ['a'] }
  const routes = [{ cost: 5 }]
  t.same(faults(file({ capacity: 10 }, [{ ...free, capacity: 'x' }], routes)), [
    'buckets.client.tiers[0].capacity: "x" is not a capacity; use a number above 0, e.g. 10',
  ])
  t.same(faults(file({ capacity: 'x' }, [{ ...free, rate: 1 }], routes)), [
    'buckets.client.capacity: "x" is not a capacity; use a number above 0, e.g. 10',
  ])
  t.same(faults(file({ maxDelay: 5 }, [{ ...free, rate: 1 }], routes)), [
    'buckets.client.maxDelay: 5 has no unit; write e.g. "5s" or "5ms"',
  ])
  t.same(faults(file({}, [{ ...free, rate: 'x' }], routes)), [
    'buckets.client.tiers[0].rate: "x" is not a rate; use e.g. "5/s", "6/30s"',
  ])
})

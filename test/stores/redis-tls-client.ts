/** Asks the store at a URL, in a process that trusts other certificates, and prints the answer. */
import { createRedisStore } from '../../src/stores/redis/store.js'
import { bucket, clock } from './conformance.js'

const store = createRedisStore({ url: process.argv[2]!, prefix: 'shaper:', timeout: 5_000, clock })
const answer = await store.admit({ stack: [bucket(1, 1)], cost: 1, maxWait: 0, claim: false })
process.send!(answer, () => process.exit())

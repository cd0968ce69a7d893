/** A primary in a process of its own. It serves two pipes until they end. */
import { Socket } from 'node:net'
import { createPrimary } from '../../src/stores/workers/primary.js'

const primary = createPrimary()
for (const fd of [3, 4]) primary.serve(new Socket({ fd }))

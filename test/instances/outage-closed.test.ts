/** Faults under load with `onOutage: "closed"`: nothing passes without the store. */
import t from 'tap'
import { testOutages } from './outages.js'

testOutages(t, 'closed')

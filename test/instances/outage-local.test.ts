/** Faults under load with `onOutage: "local"`: instances go on alone without the store. */
import t from 'tap'
import { testCrash, testOutages } from './outages.js'

testCrash(t)
testOutages(t, 'local')

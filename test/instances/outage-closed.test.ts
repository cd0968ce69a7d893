/** Faults under load, where nothing passes without the store. */
import t from 'tap'
import { testOutages } from './outages.js'

testOutages(t, 'closed')

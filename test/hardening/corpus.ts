/** Requests of our own making by section of the RFC, and the expected result of each. */
import type { Section } from './cases.js'
import { FRAMING } from './corpus-framing.js'
import { LINES } from './corpus-lines.js'
import { MEANING } from './corpus-meaning.js'

export type { Case } from './cases.js'

export const CORPUS: readonly Section[] = [...LINES, ...FRAMING, ...MEANING]

/** Requests of our own making, by the section of the RFC that says what they are, and what must come of each. */
import type { Section } from './cases.js'
import { FRAMING } from './corpus-framing.js'
import { LINES } from './corpus-lines.js'
import { MEANING } from './corpus-meaning.js'

export type { Case } from './cases.js'

export const CORPUS: readonly Section[] = [...LINES, ...FRAMING, ...MEANING]

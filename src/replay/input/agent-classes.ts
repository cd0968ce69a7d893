import { AGENT_CLASSES, classifyAgent } from '../../http/agent-class.js'
import type { LineParser } from '../formats/line-parser.js'
import { ByteInterner } from './byte-interner.js'

/** How many user agents to remember. The others are classified each time. */
const REMEMBERED = 1 << 15

/** Classifies the user agents of lines. */
export class Agents {
  readonly #agents = new ByteInterner(REMEMBERED)
  readonly #classes = new Uint8Array(REMEMBERED)

  /** The index of the class in AGENT_CLASSES. */
  classOf({ bytes, agentFrom, agentTo }: LineParser): number {
    const known = this.#agents.size
    const id = this.#agents.find(bytes, agentFrom, agentTo)
    if (id >= 0 && id < known) return this.#classes[id]!
    const text = Buffer.from(bytes.buffer, bytes.byteOffset + agentFrom, agentTo - agentFrom).toString('latin1')
    const found = AGENT_CLASSES.indexOf(classifyAgent(text))
    if (id >= 0) this.#classes[id] = found
    return found
  }
}

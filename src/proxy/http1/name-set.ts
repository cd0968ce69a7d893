import { isNamed } from './fields.js'

/**
 * A few field names, to be found in any case. Length and first letter rule out almost every other name. Hashing a name
 * that was received a moment ago would cost several times as much.
 */
export class NameSet {
  readonly #byLength: (string[] | undefined)[] = []

  /** @param names in lower case */
  constructor(names: Iterable<string>) {
    for (const name of names) {
      const alike = this.#byLength[name.length] ?? []
      this.#byLength[name.length] = [...alike, name]
    }
  }

  /** The name in lower case; undefined if it is none of these. */
  find(name: string): string | undefined {
    const alike = this.#byLength[name.length]
    if (alike === undefined) return undefined
    for (const known of alike) if (isNamed(name, known)) return known
    return undefined
  }

  has(name: string): boolean {
    return this.find(name) !== undefined
  }
}

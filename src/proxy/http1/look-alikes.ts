/**
 * Finds names that CGI, WSGI and their like take for another one: both `X-Key` and `X_Key` become `HTTP_X_KEY`. Only a name as
 * long as one of these is looked at, so all others cost nothing.
 */
export class LookAlikes {
  readonly #byLength: (string[] | undefined)[] = []
  readonly #own: ReadonlySet<string>

  /** @param names in lower case */
  constructor(names: Iterable<string>) {
    this.#own = new Set(names)
    for (const name of this.#own) {
      const hyphened = withHyphens(name)
      if (!hyphened.includes('-')) continue
      const alike = this.#byLength[name.length] ?? []
      this.#byLength[name.length] = [...alike, hyphened]
    }
  }

  /** Whether a name, with `_` read as `-`, is one of these, and is none of them as it is written. */
  has(name: string): boolean {
    const alike = this.#byLength[name.length]
    if (alike === undefined || !name.includes('_')) return false
    const lower = name.toLowerCase()
    return alike.includes(withHyphens(lower)) && !this.#own.has(lower)
  }
}

function withHyphens(name: string): string {
  return name.replaceAll('_', '-')
}

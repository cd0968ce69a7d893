/** Where a value stands in a JSON document: names of members and places in lists, from the outside in. At least one. */
export type JsonPath = readonly (string | number)[]
const LONGEST = 200
/** A name, behind a dot unless it is the first step, or a place. No character of an expression is part of a name. */
const STEP = /(?:^|\.)([^\s.[\](){}'"`+*/,;=<>?!&|@#%]+)|\[(\d{1,9})\]/y

/** Reads e.g. `usage.total_tokens` or `choices[0].index`. Undefined: the text is not a path. */
export function parseJsonPath(text: string): JsonPath | undefined {
  if (text === '' || text.length > LONGEST || text.startsWith('.')) return undefined
  const path: (string | number)[] = []
  STEP.lastIndex = 0
  for (let at = 0; at < text.length; at = STEP.lastIndex) {
    const [, name, place] = STEP.exec(text) ?? []
    if (name === undefined && place === undefined) return undefined
    path.push(name ?? Number(place))
  }
  return path
}

export function formatJsonPath(path: JsonPath): string {
  return path
    .map((step, index) => {
      if (typeof step === 'number') return `[${step}]`
      return index === 0 ? step : `.${step}`
    })
    .join('')
}

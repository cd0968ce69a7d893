const UNRESERVED = /[A-Za-z0-9\-._~]/

/** The path that routes compare: without query, in one spelling. */
export function matchingPath(target: string): string {
  const path = withoutQuery(target)
  return /%|\/[./]/.test(path) ? normalized(path) : path
}

/** The same, of a path without its parameters: `/a;v=1/b;c` becomes `/a/b`. */
export function pathWithoutParameters(target: string): string {
  // First of all: an upstream that drops them reads `..;x` as `..`.
  return matchingPath(withoutQuery(target).replace(/;[^/]*/g, ''))
}

function withoutQuery(target: string): string {
  const query = target.indexOf('?')
  return query < 0 ? target : target.slice(0, query)
}

/** Applies RFC 3986 6.2.2 and 5.2.4 and merges empty segments, so that no spelling of a path evades its route. */
function normalized(path: string): string {
  const decoded = path.replace(/%[0-9A-Fa-f]{2}/g, code => {
    const character = String.fromCharCode(Number.parseInt(code.slice(1), 16))
    return UNRESERVED.test(character) ? character : code.toUpperCase()
  })
  const segments: string[] = []
  const parts = decoded.split('/')
  for (const part of parts) {
    if (part === '..') segments.pop()
    else if (part !== '.' && part !== '') segments.push(part)
  }
  const last = parts.at(-1)
  const directory = segments.length > 0 && (last === '' || last === '.' || last === '..')
  return `/${segments.join('/')}${directory ? '/' : ''}`
}

import type * as z from 'zod'

/** An error in the file and its path. The empty path stands for the whole file. */
export interface Finding {
  readonly path: readonly PropertyKey[]
  readonly message: string
}

type Issue = z.core.$ZodIssue

/** One finding for each issue of zod. For a union only the issues of the form that the user meant are kept. */
export function findingsOf(error: z.core.$ZodError): Finding[] {
  return error.issues.flatMap(issue => flatten(issue, []))
}

function flatten(issue: Issue, base: readonly PropertyKey[]): Finding[] {
  const path = [...base, ...issue.path]
  if (issue.code === 'invalid_union') {
    const meant = meantBranch(issue.errors)
    if (meant) return meant.flatMap(inner => flatten(inner, path))
  }
  if (issue.code === 'unrecognized_keys') {
    const messages = issue.message.split('\n')
    return issue.keys.map((key, index) => ({ path: [...path, key], message: messages[index]! }))
  }
  return [{ path, message: issue.message }]
}

/** The only form of a union that fits the type of the value; undefined when there is none or several. */
function meantBranch(branches: readonly (readonly Issue[])[]): readonly Issue[] | undefined {
  const fitting = branches.filter(issues => !issues.some(isWrongForm))
  return fitting.length === 1 ? fitting[0] : undefined
}

function isWrongForm({ path, code }: Issue): boolean {
  return path.length === 0 && (code === 'invalid_type' || code === 'invalid_value' || code === 'invalid_union')
}

/** Whether `path` is at `root` or inside it. */
export function isWithin(path: readonly PropertyKey[], root: readonly PropertyKey[]): boolean {
  return root.length <= path.length && root.every((part, index) => part === path[index])
}

/** `["routes", 1, "buckets", 0]` -> `routes[1].buckets[0]` */
export function formatPath(path: readonly PropertyKey[]): string {
  return path
    .map((part, index) => {
      if (typeof part === 'number') return `[${part}]`
      const key = String(part)
      if (!/^[\w$-]+$/.test(key)) return `[${JSON.stringify(key)}]`
      return index === 0 ? key : `.${key}`
    })
    .join('')
}

import type { KeyPart, RouteSettings, Settings } from '../settings.js'

/** The parts of all keys that requests of these routes are asked for. */
export function keyPartsOf(routes: readonly RouteSettings[]): KeyPart[] {
  return routes.flatMap(({ mode, buckets, upstream: { pick } }) =>
    [
      ...(mode === 'off' ? [] : buckets.map(({ key }) => key)),
      ...(typeof pick === 'object' ? [pick.hash] : []),
    ].flatMap(({ parts }) => parts),
  )
}

/** What follows the colon in the parts of a kind, each once. */
export function namesIn(parts: readonly KeyPart[], kind: 'jwt' | 'body'): string[] {
  return [...new Set(parts.flatMap(part => (part.kind === kind ? [part.name] : [])))]
}

/** The headers that a configuration reads, each with the place that reads it. `host` stands for the authority. */
export function needsOf(routes: Settings['routes']): { readonly name: string; readonly by: string }[] {
  return routes.flatMap(({ name, match, buckets, cost, mode, priority }) => [
    ...(match.host === undefined ? [] : [{ name: 'host', by: `"match" of route "${name}"` }]),
    ...Object.keys(match.header ?? {}).map(header => ({ name: header, by: `"match" of route "${name}"` })),
    ...(mode !== 'off' && cost.kind === 'header' ? [{ name: cost.name, by: `"cost" of route "${name}"` }] : []),
    ...(mode === 'shape' && priority === 'header' ? [{ name: 'priority', by: `"priority" of route "${name}"` }] : []),
    ...(mode === 'off' ? [] : buckets).flatMap(bucket => [
      ...bucket.key.parts
        .flatMap(part => needOf(part))
        .map(field => ({ name: field, by: `the key of bucket "${bucket.name}"` })),
      ...bucket.tiers.flatMap(tier =>
        Object.keys(tier.header ?? {}).map(header => {
          return { name: header, by: `tier "${tier.name}" of bucket "${bucket.name}"` }
        }),
      ),
    ]),
  ])
}

function needOf(part: KeyPart): string[] {
  if (part.kind === 'header') return [part.name]
  if (part.kind === 'cookie') return ['cookie']
  return part.kind === 'host' ? ['host'] : []
}

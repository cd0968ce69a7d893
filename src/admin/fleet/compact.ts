/** Makes a snapshot small: the totals stay, of the keys only the fullest, of the moments only the latest. */
import type { BucketSnapshot, Snapshot } from '../snapshot/snapshot.js'

/** How much is kept: keys of each bucket, moments of its fullest key, keys of dry runs. Each step is smaller. */
const STEPS = [
  { keys: 10, moments: 64, dryRuns: 20 },
  { keys: 5, moments: 16, dryRuns: 10 },
  { keys: 2, moments: 0, dryRuns: 5 },
  { keys: 0, moments: 0, dryRuns: 0 },
] as const

type Step = (typeof STEPS)[number]

/** ms. Older moments were shown before. */
const RECENT = 2_500

/**
 * The text of as much of a snapshot as fits. Undefined: not even the totals do.
 *
 * @param most bytes
 */
export function compactSnapshot(
  snapshot: Snapshot,
  write: (compact: Snapshot) => string,
  most: number,
): string | undefined {
  for (const step of STEPS) {
    const text = write(reduced(snapshot, step))
    if (Buffer.byteLength(text) <= most) return text
  }
  // With hundreds of routes or buckets these are left out. `passed` has their sums.
  const text = write({ ...reduced(snapshot, STEPS[3]), buckets: [], routes: [], upstreams: [] })
  return Buffer.byteLength(text) <= most ? text : undefined
}

function reduced(snapshot: Snapshot, step: Step): Snapshot {
  const { dryRun, buckets, at } = snapshot
  return {
    ...snapshot,
    buckets: buckets.map(bucket => reducedBucket(bucket, step, at)),
    ...(dryRun && { dryRun: { ...dryRun, keys: dryRun.keys.slice(0, step.dryRuns) } }),
  }
}

function reducedBucket({ focus, ...bucket }: BucketSnapshot, { keys, moments }: Step, at: number): BucketSnapshot {
  const latest = (all: readonly number[]): number[] =>
    all
      .slice(-moments)
      .filter(moment => moment > at - RECENT)
      .map(moment => Math.round(moment * 10) / 10)
  return {
    ...bucket,
    fullest: bucket.fullest.slice(0, keys),
    ...(focus &&
      moments > 0 && {
        focus: {
          ...focus,
          arrivals: latest(focus.arrivals),
          releases: latest(focus.releases),
          rejections: latest(focus.rejections),
        },
      }),
  }
}

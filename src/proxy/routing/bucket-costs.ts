import { PACE } from '../../config/periods.js'
import type { BucketCostSettings } from '../../config/settings.js'
import { wellFormed } from '../../core/structures/text.js'
import { JsonNumbers } from '../../http/figures/json-numbers.js'
import { type JsonPath, parseJsonPath } from '../../http/figures/json-path.js'

/** The cost in a bucket for which none is set, and an estimate of what says nothing. */
export const USUAL_COST = 1
/** The most that a body or an answer can make a request cost. Thousandths of it are exact. */
const MOST = 1e12

export interface BodyMeasure {
  /** Bytes of all of it, or of what has come if nothing says how long it is. */
  readonly bytes: number
  readonly pieces: readonly Uint8Array[]
  /** The pieces are all of it. */
  readonly whole: boolean
}

/** Bytes. A longer text in a body is no key. */
const LONGEST_TEXT = 8 * 1024

export interface BodyFigures extends Pick<BodyMeasure, 'bytes'> {
  /** What costs look for, by path. */
  readonly numbers: readonly (number | undefined)[]
  /** By the path as it is written in keys. */
  readonly keys: ReadonlyMap<string, string>
}

export const NO_BODY: BodyFigures = { bytes: 0, numbers: [], keys: new Map() }

/** Reads once what costs and keys look for in a body. @param most bytes: a longer one has no key, however much of it has come */
export function readBody(
  { bytes, pieces, whole }: BodyMeasure,
  ofCosts: readonly JsonPath[],
  ofKeys: readonly string[],
  most: number,
): BodyFigures {
  if (ofCosts.length + ofKeys.length === 0) return { ...NO_BODY, bytes }
  const paths = [...ofCosts, ...ofKeys.map(path => parseJsonPath(path)!)]
  const values = new JsonNumbers(paths, ofKeys.length > 0 ? LONGEST_TEXT : 0)
  for (const piece of pieces) values.read(piece, 0, piece.length)
  const { found, texts, isWhole } = values
  const keys = new Map<string, string>()
  for (const [index, path] of ofKeys.entries()) {
    const at = ofCosts.length + index
    const text = texts[at] ?? (Number.isFinite(found[at]) ? String(found[at]) : undefined)
    if (whole && bytes <= most && isWhole && text !== undefined) keys.set(path, wellFormed(text))
  }
  return { bytes, numbers: found, keys }
}

interface BucketCost {
  readonly estimate: number | { readonly bytesPerUnit: number } | { readonly found: number }
  /** Its number among what is looked for in the body. */
  readonly max: number | undefined
  /** Their numbers among what is looked for in the answer. The first that is there counts. */
  readonly after: readonly number[]
}

export class BucketCosts {
  readonly answerPaths: readonly JsonPath[]
  readonly bodyPaths: readonly JsonPath[]
  readonly #measuresBody: boolean
  readonly #costs: ReadonlyMap<string, BucketCost>

  constructor(settings: Readonly<Record<string, BucketCostSettings>>) {
    const bodyPaths: JsonPath[] = []
    const answerPaths: JsonPath[] = []
    const inBody = (path: JsonPath): number => bodyPaths.push(path) - 1
    const inAnswer = (path: JsonPath): number => answerPaths.push(path) - 1
    const costs = Object.entries(settings).map(([name, { estimate, max, after = [] }]): [string, BucketCost] => [
      name,
      {
        estimate: typeof estimate === 'object' && 'path' in estimate ? { found: inBody(estimate.path) } : estimate,
        max: max && inBody(max),
        after: after.map(inAnswer),
      },
    ])
    // What paces a quota counts as the quota does.
    this.#costs = new Map([...costs, ...costs.map(([name, cost]) => [name + PACE, cost] as const)])
    this.bodyPaths = bodyPaths
    this.#measuresBody = costs.some(([, { estimate }]) => typeof estimate === 'object' && 'bytesPerUnit' in estimate)
    this.answerPaths = answerPaths
  }

  /** Whether its answer may say what a request has cost. */
  get settles(): boolean {
    return this.answerPaths.length > 0
  }

  /** Whether the body of a request has to come before its cost is known. @param length its bytes, if they are known */
  waitsForBody(length: number | undefined): boolean {
    return this.bodyPaths.length > 0 || (this.#measuresBody && length === undefined)
  }

  reserve(buckets: readonly string[], { bytes, numbers: found }: BodyFigures): number[] {
    return buckets.map(name => {
      const cost = this.#costs.get(name)
      if (cost === undefined) return USUAL_COST
      const most = cost.max === undefined ? 0 : (found[cost.max] ?? 0)
      return Math.min(MOST, estimate(cost, bytes, found) + Math.max(0, most))
    })
  }

  /** What a request has cost in a bucket. Undefined: its answer does not say. @param numbers what was found in the answer */
  settled(bucket: string, numbers: readonly (number | undefined)[]): number | undefined {
    const found = this.#costs.get(bucket)?.after.map(path => numbers[path])
    const number = found?.find(each => each !== undefined && each >= 0)
    return number === undefined ? undefined : Math.min(MOST, number)
  }

  isSettled(bucket: string): boolean {
    return (this.#costs.get(bucket)?.after.length ?? 0) > 0
  }
}

function estimate({ estimate: by }: BucketCost, bytes: number, found: readonly (number | undefined)[]): number {
  if (typeof by === 'number') return by
  if ('bytesPerUnit' in by) return bytes === 0 ? USUAL_COST : bytes / by.bytesPerUnit
  // A client may say anything.
  return Math.max(USUAL_COST, found[by.found] ?? USUAL_COST)
}

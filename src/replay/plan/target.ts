/** Reads the bounds that limits have to keep, and writes limits as lines of a configuration. */
import { parseDuration } from '../../core/units.js'
import { type Bound, METRICS, type Point } from '../runs/level-rows.js'
import { rateText } from './sweep-grid.js'

const FORMS = 'use e.g. "reject<=0.1%,p99<=2s"; there are reject and delay in %, and p50, p90, p99 and max'

/** @throws RangeError naming what is wrong, and the forms that work */
export function parseTarget(text: string): Bound[] {
  const bounds = text.split(',').map((part): Bound => {
    const [, name = '', value = ''] = /^\s*(\w+)\s*<=?\s*(\S+)\s*$/.exec(part) ?? []
    const metric = METRICS.find(each => each === name)
    if (metric === undefined) throw new RangeError(`${JSON.stringify(part)} is no target; ${FORMS}`)
    if (metric !== 'reject' && metric !== 'delay') return { metric, most: parseDuration(value) }
    if (/^\d*\.?\d+$/.test(value)) {
      const percent = Number((100 * Number(value)).toPrecision(6))
      throw new RangeError(
        `${JSON.stringify(value)} is no share; write "${value}%", or "${percent}%" if 1 stands for all`,
      )
    }
    const [, percent] = /^(\d+(?:\.\d+)?)%$/.exec(value) ?? []
    if (percent === undefined || Number(percent) > 100)
      throw new RangeError(`${JSON.stringify(value)} is no share; ${FORMS}`)
    // As floating point numbers 0.7 / 100 is less than 7 / 1000, the share that is counted.
    return { metric, most: Number(`${percent}e-2`) }
  })
  const twice = bounds.find(({ metric }, at) => bounds.findIndex(bound => bound.metric === metric) < at)
  if (twice !== undefined) throw new RangeError(`${twice.metric} is bounded twice; remove one`)
  return bounds
}

export interface TargetBucket {
  readonly name: string
  /** Undefined: the log does not tell what its clients are told apart by. */
  readonly key: string | undefined
  readonly burst: number | undefined
}

/** Limits as a line of a configuration: a whole bucket, or what to write into one whose key is not known. */
export function configLines({ rate, capacity }: Point, { name, key, burst }: TargetBucket): string {
  const bursts = burst === undefined ? '' : `, "burst": ${burst}`
  const limits = `"rate": "${rateText(rate)}", "capacity": ${capacity}${bursts}`
  if (key === undefined) return limits
  return `"buckets": { ${JSON.stringify(name)}: { "key": ${JSON.stringify(key)}, ${limits} } }`
}

/** Reports of a replay as lines for a terminal. */
import { counted } from '../../config/messages.js'
import { durationText } from '../../core/units.js'
import type { DiffReport } from '../../replay/report/diff.js'
import type { LeavingOutcomes, LeavingReport, PeakReport, ReplayReport } from '../../replay/report/report.js'
import { aligned } from '../text.js'

/** How many clients to list. */
const LISTED = 10
const SHADES = [' ', '░', '▒', '▓', '█']

export function reportLines(report: ReplayReport): string[] {
  const { requests, limits, sweep, leaving } = report
  const bursts = limits.burst === undefined ? '' : `, burst ${limits.burst}`
  const what =
    limits.rate === undefined ? limits.name : `${limits.rate}, capacity ${limits.capacity}${bursts}, key ${limits.key}`
  // Nobody asked what the largest limits of a sweep would have done.
  const isAsked = limits.chosen !== 'largest'
  const head = [
    ...(sweep?.recommended === undefined ? [] : [...recommendedLines(sweep.recommended), '']),
    `${counted(requests, 'request')} of ${counted(report.clients.total, 'client')} in ${counted(report.lines, 'line')} (${report.formats.join(', ') || 'nothing'})`,
    ...(report.from === undefined ? [] : [`from ${report.from} to ${report.to}`]),
    ...(isAsked ? [`limits: ${what}`] : []),
    `times:  ${report.times}`,
  ]
  if (requests === 0) return [...head, ...remarks(report)]
  return [
    ...head,
    ...(isAsked ? outcomes(report) : []),
    ...(sweep === undefined ? [] : ['', ...sweepLines(sweep)]),
    ...(leaving === undefined ? [] : ['', ...leavingLines(leaving)]),
    ...remarks(report),
  ]
}

function outcomes(report: ReplayReport): string[] {
  return [
    '',
    ...outcomeLines(report),
    '',
    ...agentLines(report),
    '',
    ...clientLines(report),
    '',
    peakLine('busiest second', report.busiest),
    `the upstream would have seen at most ${report.upstream.after.releases} in a second${at(report.upstream.after)}; without limits ${report.upstream.before.arrivals}`,
  ]
}

function outcomeLines({ requests, atOnce, delayed, rejected, expired, wait }: ReplayReport): string[] {
  const waits = `  wait p50 ${durationText(wait.p50)}, p90 ${durationText(wait.p90)}, p99 ${durationText(wait.p99)}, max ${durationText(wait.max)}`
  return aligned([
    ['admitted at once', atOnce, share(atOnce, requests), ''],
    ['delayed', delayed, share(delayed, requests), delayed > 0 ? waits : ''],
    ['rejected', rejected, share(rejected, requests), expired > 0 ? `  ${expired} of them after maxWait` : ''],
  ])
}

function agentLines({ agents }: ReplayReport): string[] {
  return aligned([
    ['by user agent', 'requests', 'delayed', 'rejected', ''],
    ...Object.entries(agents)
      .filter(([, { requests }]) => requests > 0)
      .map(([name, { requests, delayed, rejected }]) => [name, requests, delayed, rejected, share(rejected, requests)]),
  ])
}

function clientLines({ clients }: ReplayReport): string[] {
  const { delayed, rejected, total, hardest } = clients
  const summary = `${counted(rejected, 'client')} of ${total} would have had requests rejected, ${delayed} delayed`
  if (hardest.length === 0) return [summary]
  return [
    summary,
    ...aligned([
      ['client', 'agent', 'requests', 'delayed', 'rejected', '', 'mean wait', 'longest'],
      ...hardest.slice(0, LISTED).map(({ client, agent, requests, delayed, rejected, ...times }) => {
        const waits = [times.meanWait, times.maxWait].map(wait => (delayed > 0 ? durationText(wait) : '-'))
        return [client, agent, requests, delayed, rejected, share(rejected, requests), ...waits]
      }),
    ]),
    ...(hardest.length > LISTED ? [`... ${hardest.length - LISTED} more with --json`] : []),
  ]
}

type Sweep = NonNullable<ReplayReport['sweep']>

function sweepLines(sweep: Sweep): string[] {
  return [
    ...heatMap('rejected', sweep, ({ rejected, requests }) => [rejected / requests, share(rejected, requests)]),
    '',
    ...heatMap('p99 wait', sweep, ({ wait, delayed }) => [wait.p99, delayed > 0 ? durationText(wait.p99) : '-']),
  ]
}

function recommendedLines(found: NonNullable<Sweep['recommended']>): string[] {
  const { rate, capacity, rejected, requests, wait, config } = found
  return [
    `the smallest that meets the target: rate ${rate}, capacity ${capacity}: ` +
      `${share(rejected, requests)} rejected, p99 wait ${durationText(wait.p99)}, max ${durationText(wait.max)}`,
    `  ${config}`,
  ]
}

function leavingLines({ patience, service, kept, givenUp }: LeavingReport): string[] {
  const row = (title: string, of: (outcomes: LeavingOutcomes) => number) => [title, of(kept), of(givenUp)]
  const forNobody = ({ inTime, late }: LeavingOutcomes): string => share(late, inTime + late)
  return [
    `if clients leave after ${durationText(patience)}, and answers take ${service === undefined ? 'no time' : `${durationText(service)} (90th percentile in the log)`}:`,
    ...aligned([
      ['', 'nothing given up', 'given up'],
      row('answered in time', ({ inTime }) => inTime),
      row('answered after they left', ({ late }) => late),
      row('left while queued', ({ left }) => left),
      row('given up', ({ givenUp: count }) => count),
      row('rejected', ({ rejected }) => rejected),
      ['sent for nobody', forNobody(kept), forNobody(givenUp)],
    ]),
    ...(service === undefined
      ? ['', 'note: the log does not say how long answers take, so too few are counted as answered after clients left']
      : []),
  ]
}

/** One row for each rate and one column for each capacity. The shade follows the square root of the value. */
function heatMap(
  title: string,
  { rates, capacities, points }: Sweep,
  value: (point: Sweep['points'][number]) => [number, string],
): string[] {
  const most = Math.max(...points.map(point => value(point)[0]))
  const rows = rates.map((rate, row) => [
    rate,
    ...capacities.map((_, column) => {
      const [number, text] = value(points[row * capacities.length + column]!)
      const shade = most > 0 ? Math.ceil(Math.sqrt(number / most) * (SHADES.length - 1)) : 0
      return `${SHADES[shade]} ${text}`
    }),
  ])
  return aligned([[`${title}: rate \\ b`, ...capacities.map(capacity => `  ${capacity}`)], ...rows])
}

function remarks({ bad, badLines, late, notes, skipped }: ReplayReport): string[] {
  const reasons = Object.entries(badLines.reasons).map(([reason, count]) => `${reason} ${count}`)
  return [
    ...(bad === 0 ? [] : ['', `${counted(bad, 'bad line')}: ${reasons.join(', ')}`]),
    ...badLines.examples.map(({ line, reason, text }) => `  line ${line}, ${reason}: ${text}`),
    ...(skipped > 0 ? ['', `${counted(skipped, 'record')} left out: not about requests that reached a bucket`] : []),
    ...(late === 0
      ? []
      : ['', `${counted(late, 'request')} came more than a minute late in the stream, and count at a later time`]),
    ...notes.flatMap(note => ['', `note: ${note}`]),
  ]
}

function peakLine(title: string, peak: PeakReport): string {
  const { arrivals, releases, rejected } = peak
  return `${title}${at(peak)}: ${arrivals} came, ${releases} would have been released, ${rejected} rejected`
}

function at({ at }: PeakReport): string {
  return at === undefined ? '' : ` (${at.replace('.000Z', 'Z')})`
}

export function diffLines({ a, b, clients }: DiffReport): string[] {
  const row = (title: string, of: (report: ReplayReport) => string | number) => [title, of(a), of(b)]
  const { changed } = clients
  return [
    ...aligned([
      ['', a.limits.name, b.limits.name],
      row('requests', ({ requests }) => requests),
      row('admitted at once', ({ atOnce, requests }) => `${atOnce} (${share(atOnce, requests)})`),
      row('delayed', ({ delayed, requests }) => `${delayed} (${share(delayed, requests)})`),
      row('rejected', ({ rejected, requests }) => `${rejected} (${share(rejected, requests)})`),
      row('wait p50', ({ wait }) => durationText(wait.p50)),
      row('wait p99', ({ wait }) => durationText(wait.p99)),
      row('longest wait', ({ wait }) => durationText(wait.max)),
      row('most in a second', ({ upstream }) => upstream.after.releases),
    ]),
    '',
    `clients: ${clients.newlyRejected} newly rejected, ${clients.noLongerRejected} no longer; ` +
      `${clients.newlyDelayed} newly delayed, ${clients.noLongerDelayed} no longer`,
    ...(changed.length === 0
      ? []
      : aligned([
          ['client', 'agent', 'requests', 'rejected', 'delayed', 'longest wait'],
          ...changed
            .slice(0, LISTED)
            .map(({ client, agent, requests, a, b }) => [
              client,
              agent,
              requests,
              `${a.rejected} -> ${b.rejected}`,
              `${a.delayed} -> ${b.delayed}`,
              `${durationText(a.maxWait)} -> ${durationText(b.maxWait)}`,
            ]),
        ])),
    ...remarks(a),
  ]
}

function share(part: number, whole: number): string {
  if (whole === 0 || part === 0) return '0 %'
  const percent = (100 * part) / whole
  return percent < 0.001 ? '<0.001 %' : `${Number(percent.toPrecision(percent >= 10 ? 3 : 2))} %`
}

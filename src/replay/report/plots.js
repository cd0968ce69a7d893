// @ts-check
/** Shows a report on its page. */
import { drawAgents, drawClients, drawMap, drawSeries, drawWaits } from './plots-charts.js'
import { byId, html, moment, share, time, whole } from './plots-svg.js'

const report = JSON.parse(byId('report').textContent ?? '')
const { requests, atOnce, delayed, rejected, wait, limits, clients, upstream, busiest, series } = report

byId('limits').append(
  ...(limits.rate === undefined
    ? [html('code', {}, [limits.name])]
    : [
        html('code', {}, [limits.rate]),
        ' with a capacity of ',
        html('code', {}, [String(limits.capacity)]),
        ...(limits.burst === undefined ? [] : [' and a burst of ', html('code', {}, [String(limits.burst)])]),
        ' for each ',
        html('code', {}, [limits.key]),
        ...(limits.chosen === 'largest' ? [', the largest that were tried'] : []),
      ]),
)
byId('traffic').textContent =
  `${whole(requests)} requests of ${whole(clients.total)} clients, ${moment(report.from)} to ${moment(report.to)} UTC, from ${report.logs.join(', ')}`

/** @param {string} tone @param {string} value @param {...string} says */
const tile = (tone, value, ...says) =>
  html('div', { class: `tile ${tone}` }, [html('b', {}, [value]), ...says.map(text => html('span', {}, [text]))])
byId('tiles').append(
  tile('requests', whole(requests), 'requests', `busiest second: ${whole(busiest.arrivals)}`),
  tile('at-once', share(atOnce, requests), 'admitted at once', whole(atOnce)),
  tile('delayed', share(delayed, requests), 'delayed', whole(delayed)),
  tile(
    'delayed',
    delayed > 0 ? time(wait.p99) : '-',
    'wait, p99 of those delayed',
    `p50 ${time(wait.p50)}, max ${time(wait.max)}`,
  ),
  tile('rejected', share(rejected, requests), 'rejected', `${whole(rejected)}, of ${whole(clients.rejected)} clients`),
)
byId('series-caption').textContent =
  `Per second, in points of ${time(series.width * 1_000)}. In its worst second the upstream would have seen ${whole(upstream.after.releases)}, without limits ${whole(upstream.before.arrivals)}.`
byId('waits-caption').textContent =
  delayed > 0 ? `Of the ${whole(delayed)} delayed; ${whole(atOnce)} more did not wait.` : ''
byId('clients-caption').textContent =
  `${whole(clients.rejected)} clients with requests rejected, ${whole(clients.delayed)} with some delayed; those hit hardest first.`
byId('rule').textContent = `Times: ${report.times}.`

if (report.sweep !== undefined) {
  const { recommended } = report.sweep
  byId('sweep').hidden = false
  if (recommended !== undefined) {
    const section = byId('recommended')
    section.hidden = false
    const [text, config] = [section.querySelector('p'), section.querySelector('pre')]
    if (text) {
      text.textContent = `Rate ${recommended.rate} and capacity ${whole(recommended.capacity)}: ${share(recommended.rejected, recommended.requests)} rejected, p99 wait ${time(recommended.wait.p99)}, longest ${time(recommended.wait.max)}.`
    }
    if (config) config.textContent = recommended.config
  }
}

const remarks = [
  ...report.errors,
  ...report.notes,
  ...(report.late > 0
    ? [`${whole(report.late)} requests came more than a minute late in the stream, and count at a later time.`]
    : []),
  ...Object.entries(report.badLines.reasons).map(([reason, count]) => `${whole(Number(count))} bad lines: ${reason}`),
  ...report.badLines.examples.map((/** @type {any} */ { line, text }) => `line ${line}: ${text}`),
]
byId('remarks').hidden = remarks.length === 0
byId('remarks')
  .querySelector('ul')
  ?.append(...remarks.map(text => html('li', {}, [text])))

function draw() {
  drawSeries(byId('series'), report)
  drawWaits(byId('waits'), report)
}
draw()
addEventListener('resize', draw)
drawAgents(byId('agents'), report)
drawClients(byId('clients'), report)
if (report.sweep !== undefined) {
  drawMap(byId('sweep-rejected'), report.sweep, {
    title: 'Rejected',
    tone: '--heat',
    value: point => point.rejected / point.requests,
    text: point => share(point.rejected, point.requests),
  })
  drawMap(byId('sweep-wait'), report.sweep, {
    title: 'p99 wait of those delayed',
    tone: '--wait-heat',
    value: point => point.wait.p99,
    text: point => (point.delayed > 0 ? time(point.wait.p99) : '-'),
  })
}

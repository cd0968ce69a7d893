/** Shows a report on its page, with its plots. */

const SVG = 'http://www.w3.org/2000/svg'

function svg(name, attributes = {}, children = []) {
  return filled(document.createElementNS(SVG, name), attributes, children)
}

function html(name, attributes = {}, children = []) {
  return filled(document.createElement(name), attributes, children)
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value))
  element.append(...children)
  return element
}

const byId = id => document.getElementById(id)

const whole = value => Math.round(value).toLocaleString('en')

const short = value => (value >= 100 ? whole(value) : String(Number(value.toPrecision(value >= 10 ? 3 : 2))))

function share(part, all) {
  if (part === 0 || all === 0) return '0 %'
  const percent = (100 * part) / all
  return percent < 0.001 ? '<0.001 %' : `${Number(percent.toPrecision(percent >= 10 ? 3 : 2))} %`
}

function time(ms) {
  if (ms < 1_000) return `${Number(ms.toPrecision(3))} ms`
  const seconds = ms / 1_000
  if (seconds < 120) return `${Number(seconds.toPrecision(3))} s`
  return seconds < 7_200
    ? `${Number((seconds / 60).toPrecision(3))} min`
    : `${Number((seconds / 3_600).toPrecision(3))} h`
}

/** A time, `seconds` after another. */
function moment(iso, seconds = 0) {
  if (iso === undefined) return ''
  return new Date(Date.parse(iso) + seconds * 1_000)
    .toISOString()
    .replace('T', ' ')
    .replace(/\.\d+Z$/, '')
}

/** Round numbers from 0 to at least `most`. */
function ticks(most, count) {
  const rough = most / count
  const power = 10 ** Math.floor(Math.log10(rough))
  const step = ([1, 2, 5, 10].find(each => each * power >= rough) ?? 10) * power
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, at) => Number((at * step).toPrecision(6)))
}

/** Shows a text beside the pointer over an element. */
function tipped(element, say) {
  const tip = byId('tip')
  element.addEventListener('pointermove', event => {
    const { clientX, clientY } = event
    tip.textContent = say(event)
    tip.hidden = false
    const x = Math.min(clientX + 14, innerWidth - tip.offsetWidth - 8)
    tip.style.setProperty('left', `${Math.max(8, x)}px`)
    tip.style.setProperty('top', `${Math.max(8, clientY - tip.offsetHeight - 10)}px`)
  })
  element.addEventListener('pointerleave', () => {
    tip.hidden = true
  })
}

/** The width of a drawing in its own units. The browser scales it. */
const widthOf = into => Math.max(300, into.clientWidth)

const LEFT = 46
const BOTTOM = 22

/** A line and a number for each mark. */
function scale(marks, width, y) {
  return marks.flatMap(mark => [
    svg('line', { class: 'grid', x1: LEFT, x2: width, y1: y(mark), y2: y(mark) }),
    svg('text', { x: LEFT - 8, y: y(mark) + 4, 'text-anchor': 'end' }, [short(mark)]),
  ])
}

/** Draws arrivals as an area, releases as a line and rejections as a second area, each as the mean per second. */
function drawSeries(into, { series }) {
  const [width, height] = [widthOf(into), 230]
  const { arrivals, releases, rejected, peakArrivals, peakReleases, width: seconds, start } = series
  const count = arrivals.length
  if (count === 0) return into.replaceChildren(html('p', { class: 'quiet' }, ['No request.']))
  const rate = (values, at) => values[at] / seconds
  const most = Math.max(1 / seconds, ...arrivals.map(n => n / seconds), ...releases.map(n => n / seconds))
  const marks = ticks(most, 4)
  const top = marks.at(-1)
  const x = at => LEFT + ((width - LEFT) * at) / count
  const y = value => 8 + (height - 8 - BOTTOM) * (1 - value / top)
  const place = (at, height) => `${at.toFixed(2)},${height.toFixed(2)}`
  const stairs = values =>
    values.flatMap((_, at) => [x(at), x(at + 1)].map(edge => place(edge, y(rate(values, at))))).join(' ')
  const area = (tone, values) =>
    svg('polygon', { class: tone, points: `${place(x(0), y(0))} ${stairs(values)} ${place(x(count), y(0))}` })
  const hand = svg('line', { class: 'hand', y1: 8, y2: height - BOTTOM })
  const drawing = svg(
    'svg',
    { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': 'Arrivals and releases per second over time' },
    [
      ...scale(marks, width, y),
      area('area-arrivals', arrivals),
      area('fill-rejected', rejected),
      svg('polyline', { class: 'line-releases', points: stairs(releases) }),
      svg('text', { x: LEFT, y: height - 4 }, [moment(start)]),
      svg('text', { x: width, y: height - 4, 'text-anchor': 'end' }, [moment(start, count * seconds)]),
      hand,
    ],
  )
  drawing.addEventListener('pointerleave', () => hand.style.setProperty('visibility', 'hidden'))
  tipped(drawing, event => {
    const box = drawing.getBoundingClientRect()
    const scale = width / box.width
    const at = Math.min(
      count - 1,
      Math.max(0, Math.floor((((event.clientX - box.left) * scale - LEFT) / (width - LEFT)) * count)),
    )
    hand.setAttribute('x1', String(x(at + 0.5)))
    hand.setAttribute('x2', String(x(at + 0.5)))
    hand.style.setProperty('visibility', 'visible')
    return [
      moment(start, at * seconds),
      `${short(rate(arrivals, at))}/s came (peak ${whole(peakArrivals[at])})`,
      `${short(rate(releases, at))}/s released (peak ${whole(peakReleases[at])})`,
      `${short(rate(rejected, at))}/s rejected`,
    ].join('\n')
  })
  into.replaceChildren(
    drawing,
    legend([
      ['requests', 'arrivals'],
      ['delayed', 'releases'],
      ['rejected', 'rejected'],
    ]),
  )
}

function legend(entries) {
  return html(
    'p',
    { class: 'legend' },
    entries.map(([tone, name]) => html('span', { class: tone }, [html('i'), name])),
  )
}

/** Draws the distribution of waits, one bar for each bin. */
function drawWaits(into, { waits, delayed }) {
  if (waits.length === 0) return into.replaceChildren(html('p', { class: 'quiet' }, ['No request would have waited.']))
  const [width, height] = [widthOf(into), 220]
  const most = Math.max(...waits.map(bin => bin.count))
  const marks = ticks(most, 4)
  const top = marks.at(-1)
  const step = (width - LEFT) / waits.length
  const y = value => 8 + (height - 8 - BOTTOM) * (1 - value / top)
  const every = Math.ceil(58 / step)
  const bars = waits.map(({ from, to, count }, at) => {
    const bar = svg('rect', {
      class: 'fill-delayed',
      x: LEFT + at * step + 1,
      y: y(count),
      width: Math.max(1, step - 2),
      height: y(0) - y(count),
      rx: 2,
    })
    tipped(
      bar,
      () => `${time(from)} to ${time(to)}\n${whole(count)} requests, ${share(count, delayed)} of those delayed`,
    )
    return bar
  })
  into.replaceChildren(
    svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': 'Distribution of waits' }, [
      ...scale(marks, width, y),
      ...bars,
      ...waits.flatMap(({ from }, at) =>
        at % every === 0
          ? [
              svg('text', { x: LEFT + at * step, y: height - 4, 'text-anchor': at === 0 ? 'start' : 'middle' }, [
                time(from),
              ]),
            ]
          : [],
      ),
    ]),
  )
}

/** A bar of three parts: at once, delayed, rejected. */
function stack({ requests, delayed, rejected }, most, name) {
  const parts = [
    ['fill-at-once', requests - delayed - rejected],
    ['fill-delayed', delayed],
    ['fill-rejected', rejected],
  ]
  let x = 0
  const drawing = svg(
    'svg',
    {
      viewBox: '0 0 100 10',
      preserveAspectRatio: 'none',
      height: 14,
      role: 'img',
      'aria-label': `${rejected} of ${requests} rejected`,
    },
    parts.map(([tone, count]) => {
      const width = (100 * Number(count)) / most
      const part = svg('rect', { class: tone, x, y: 0, width, height: 10 })
      x += width
      return part
    }),
  )
  drawing.style.setProperty('height', '14px')
  tipped(
    drawing,
    () =>
      `${name}\n${whole(requests - delayed - rejected)} at once\n${whole(delayed)} delayed\n${whole(rejected)} rejected`,
  )
  return drawing
}

const OUTCOMES = [
  ['at-once', 'at once'],
  ['delayed', 'delayed'],
  ['rejected', 'rejected'],
]

function drawAgents(into, { agents }) {
  const rows = Object.entries(agents).filter(([, { requests }]) => requests > 0)
  const most = Math.max(...rows.map(([, { requests }]) => requests))
  const body = rows.map(([name, outcome]) =>
    row([
      name,
      html('td', { class: 'bar' }, [stack(outcome, most, name)]),
      whole(outcome.requests),
      share(outcome.rejected, outcome.requests),
    ]),
  )
  into.replaceChildren(list(['agent', '', 'requests', 'rejected'], body), legend(OUTCOMES))
}

function drawClients(into, { clients: { hardest } }) {
  if (hardest.length === 0) return into.replaceChildren(html('p', { class: 'quiet' }, ['No client.']))
  const shown = hardest.slice(0, 20)
  const most = Math.max(...shown.map(({ requests }) => requests))
  const body = shown.map(client =>
    row([
      client.client,
      html('td', { class: 'left' }, [client.agent]),
      html('td', { class: 'bar' }, [stack(client, most, client.client)]),
      whole(client.requests),
      whole(client.delayed),
      whole(client.rejected),
      share(client.rejected, client.requests),
      client.delayed > 0 ? time(client.maxWait) : '-',
    ]),
  )
  const titles = ['client', 'agent', '', 'requests', 'delayed', 'rejected', '', 'longest wait']
  into.replaceChildren(list(titles, body), legend(OUTCOMES))
}

function row(cells) {
  return html(
    'tr',
    {},
    cells.map(cell => (typeof cell === 'string' ? html('td', {}, [cell]) : cell)),
  )
}

function list(titles, body) {
  const head = html(
    'tr',
    {},
    titles.map((title, at) => html('th', at < 2 ? { class: 'left' } : {}, [title])),
  )
  return html('div', { class: 'wide' }, [
    html('table', { class: 'list' }, [html('thead', {}, [head]), html('tbody', {}, body)]),
  ])
}

/** Draws a table with one row for each rate and one column for each capacity, shaded by value. */
function drawMap(into, { rates, capacities, points, recommended }, { title, tone, value, text }) {
  const most = Math.max(...points.map(value))
  const head = html('tr', {}, [html('th', {}, ['r \\ b']), ...capacities.map(b => html('th', {}, [whole(b)]))])
  const rows = rates.map((rate, at) =>
    html('tr', {}, [
      html('th', {}, [rate]),
      ...capacities.map((capacity, column) => {
        const point = points[at * capacities.length + column]
        const chosen = recommended !== undefined && recommended.rate === rate && recommended.capacity === capacity
        const cell = html('td', chosen ? { class: 'chosen' } : {}, [text(point)])
        const strength = most > 0 ? Math.sqrt(value(point) / most) : 0
        cell.style.setProperty(
          'background',
          `color-mix(in srgb, var(${tone}) ${(85 * strength).toFixed(1)}%, transparent)`,
        )
        tipped(cell, () =>
          [
            `${rate}, capacity ${whole(capacity)}`,
            `${share(point.rejected, point.requests)} rejected, ${share(point.delayed, point.requests)} delayed`,
            `wait p50 ${time(point.wait.p50)}, p99 ${time(point.wait.p99)}, max ${time(point.wait.max)}`,
          ].join('\n'),
        )
        return cell
      }),
    ]),
  )
  const table = html('table', { class: 'map' }, [
    html('caption', {}, [title]),
    html('thead', {}, [head]),
    html('tbody', {}, rows),
  ])
  into.replaceChildren(html('div', { class: 'wide' }, [table]))
}

const report = JSON.parse(byId('report').textContent)
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
    section.querySelector('p').textContent =
      `Rate ${recommended.rate} and capacity ${whole(recommended.capacity)}: ${share(recommended.rejected, recommended.requests)} rejected, p99 wait ${time(recommended.wait.p99)}, longest ${time(recommended.wait.max)}.`
    section.querySelector('pre').textContent = recommended.config
  }
}

const remarks = [
  ...report.errors,
  ...report.notes,
  ...(report.late > 0
    ? [`${whole(report.late)} requests came more than a minute late in the stream, and count at a later time.`]
    : []),
  ...Object.entries(report.badLines.reasons).map(([reason, count]) => `${whole(Number(count))} bad lines: ${reason}`),
  ...report.badLines.examples.map(({ line, text }) => `line ${line}: ${text}`),
]
byId('remarks').hidden = remarks.length === 0
byId('remarks')
  .querySelector('ul')
  .append(...remarks.map(text => html('li', {}, [text])))

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
    tone: '--rejected',
    value: point => point.rejected / point.requests,
    text: point => share(point.rejected, point.requests),
  })
  drawMap(byId('sweep-wait'), report.sweep, {
    title: 'p99 wait of those delayed',
    tone: '--delayed',
    value: point => point.wait.p99,
    text: point => (point.delayed > 0 ? time(point.wait.p99) : '-'),
  })
}

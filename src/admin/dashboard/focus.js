/** The bucket in focus: which it is, its figures, and the pictures in words. */
import { stripSpan } from './charts.js'
import { byId, count, duration, keyName, list, make, percent, perSecond, put, setShare, show } from './format.js'
import { gaps } from './history.js'
import { canvases } from './stage.js'

/** Over how long figures per second are taken, in ms. */
export const WINDOW = 5_000
/** How often pictures are told in words, in ms: at once where another bucket is in focus. */
const TOLD_EVERY = 2_000

let told = { name: undefined, at: -Infinity }

/** `onChoice(name)` when somebody chooses another. */
export function fillChooser(buckets, focus, onChoice) {
  const create = () => {
    const button = make('button')
    button.type = 'button'
    button.append(make('b'), make('span', 'share'))
    button.fill = button.appendChild(make('span', 'bar')).appendChild(make('i'))
    return button
  }
  list(
    byId('chooser'),
    buckets,
    ({ name }) => name,
    create,
    (button, { name, fullest }) => {
      const share = Math.max(0, ...fullest.map(({ level, capacity }) => level / capacity))
      put(button.children[0], name)
      put(button.children[1], percent(share))
      setShare(button.fill, share)
      button.fill.className = share > 0.9 ? 'full' : ''
      button.setAttribute('aria-pressed', String(name === focus.name))
      button.onclick = () => onChoice(name)
    },
  )
}

export function fillFocus(bucket, history, snapshot) {
  const {
    key,
    level = 0,
    capacity = bucket.capacity,
    rate: own,
    tier,
    blockedMs,
  } = history.focus ?? { rate: bucket.rate }
  const routes = snapshot.routes.filter(({ name }) => bucket.routes.includes(name))
  const isShaped = routes.every(({ mode, dryRun }) => mode === 'shape' && !dryRun)
  const isMeter = routes.length > 0 && routes.every(({ mode }) => mode === 'meter')
  // One instance is the whole bucket; of one among several only the requests are known, not what they cost.
  const measured = (figure, kind) => (bucket.keys > 1 ? history.eventRate(kind, WINDOW) : history.rate(figure, WINDOW))
  put(byId('bucket-title'), bucket.name)
  put(byId('bucket-law'), `${perSecond(own)}, holds ${count(capacity)}`)
  put(byId('bucket-key'), key === undefined ? `by ${bucket.key}` : `by ${bucket.key}: ${keyName(key)}`)
  put(byId('focus-in'), perSecond(measured('offered', 'arrivals')))
  put(byId('focus-out'), perSecond(measured('released', 'releases')))
  put(byId('focus-rejected'), perSecond(measured('rejected', 'rejections')))
  const flags = []
  if (isMeter) flags.push('meter: passed on at once')
  if (routes.length > 0 && routes.every(({ dryRun }) => dryRun)) flags.push('dry run: nothing is held')
  if (bucket.rate < bucket.configured)
    flags.push(`learned ${perSecond(bucket.rate)} of ${perSecond(bucket.configured)}`)
  if (blockedMs !== undefined) flags.push(blockedMs < 0 ? 'blocked until empty' : `blocked ${duration(blockedMs)}`)
  if (snapshot.upstreams.some(({ pausedMs }) => pausedMs > 0)) flags.push('upstream paused')
  if (tier !== undefined) flags.push(`tier ${tier}`)
  if (bucket.queued > 0) flags.push(`${count(bucket.queued)} queued`)
  list(
    byId('flags'),
    flags,
    flag => flag.split(' ', 1)[0],
    () => make('li'),
    put,
  )

  const [into, out, lost] = ['offered', 'released', 'rejected'].map(figure => perSecond(history.rate(figure, WINDOW)))
  put(byId('rates-now'), `${into} in, ${out} out${bucket.keys > 1 ? `, ${count(bucket.keys)} keys` : ''}`)
  const gap = gaps(history.events, own)
  const period = `1/r ${duration(1_000 / own)}`
  const gapText = !isShaped || gap.count < 2 ? '' : `gap p50 ${duration(gap.p50)}, p99 ${duration(gap.p99)}, `
  put(byId('strip-gaps'), gapText + period)

  if (told.name === bucket.name && Math.abs(snapshot.at - told.at) < TOLD_EVERY) return
  told = { name: bucket.name, at: snapshot.at }
  const [first] = bucket.fullest
  const fullest = first && `; ${keyName(first.key)} is ${percent(first.level / first.capacity)} full`
  const longest = snapshot.wait.count > 0 ? `; the longest wait was ${duration(snapshot.wait.max)}` : ''
  put(byId('summary'), `${bucket.name}: ${into} in, ${out} out, ${lost} turned away${longest}${fullest ?? ''}.`)
  const words = {
    bucket: `Leaky bucket ${bucket.name}: level ${count(Number(level.toFixed(1)))} of ${count(capacity)}, leaking ${perSecond(own)}`,
    rates: `The last minute of ${bucket.name}: now ${into} in, ${out} out, against a rate of ${perSecond(bucket.rate)}`,
    strip: `Arrivals and releases of the last ${duration(stripSpan(own))}; ${gapText}${period}`,
  }
  for (const [id, text] of Object.entries(words)) canvases[id].setAttribute('aria-label', text)
}

/** What to do where there is nothing to see. */
export function fillNotice({ buckets, routes }) {
  const isIdle = routes.every(({ outcomes }) => Object.values(outcomes).every(value => value === 0))
  const isSilent = isIdle && buckets.every(({ offered }) => offered === 0)
  byId('notice').classList.add('above')
  if (buckets.length === 0) {
    notice(
      'No buckets',
      'This configuration has no buckets: every request is passed on untouched. Add one below "buckets" and name it in a route to shape.',
    )
  } else if (isSilent) {
    const burst = `for i in $(seq 14); do curl -s -o /dev/null -w '%{http_code} %{time_total}\\n' http://${location.hostname}:8080/ & done; wait`
    notice(
      'No traffic yet',
      'Send a burst to where shaper listens (8080 if nothing else is set), and watch it come out evenly:',
      burst,
    )
  } else {
    show(byId('notice'), false)
  }
}

function notice(title, text, command = '') {
  const [heading, words, code] = byId('notice').children
  put(heading, title)
  put(words, text)
  put(code, command)
  show(code, command !== '')
  show(byId('notice'), true)
}

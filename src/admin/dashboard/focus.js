/** The bucket in focus: its choice, its figures, and the text alternatives of the pictures. */
import { stripSpan } from './charts.js'
import {
  amount,
  byId,
  colour,
  count,
  duration,
  fullness,
  fullnessText,
  keyName,
  levelText,
  list,
  make,
  moment,
  percent,
  perSecond,
  put,
  rateText,
  setShare,
} from './format.js'
import { gaps } from './history.js'
import { canvases } from './stage.js'

/** The window of figures per second, in ms. */
export const WINDOW = 5_000
/** How often the text alternatives change, in ms. Another bucket in focus changes them at once. */
const DESCRIBE_EVERY = 2_000
let described = { name: undefined, at: -Infinity }

/** @param onChoice called with the name of the bucket that the user chooses */
export function fillChooser(buckets, focus, onChoice) {
  const create = () => {
    const button = make('button')
    button.type = 'button'
    button.append(make('b'), make('span', 'share'))
    button.fill = button.appendChild(make('span', 'bar')).appendChild(make('i'))
    return button
  }
  list(byId('chooser'), buckets, {
    nameOf: ({ name }) => name,
    create,
    fill(button, { name, fullest }) {
      const [first] = fullest
      const share = Math.max(0, ...fullest.map(fullness))
      put(button.children[0], name)
      put(button.children[1], first?.capacity === null ? fullnessText(first) : percent(share))
      setShare(button.fill, share)
      button.fill.className = share > 0.9 ? 'full' : ''
      button.setAttribute('aria-pressed', String(name === focus.name))
      button.onclick = () => onChoice(name)
    },
  })
}

/** `isChosen`: the user has chosen one key of the bucket. `isTroubled`: something is wrong. */
export function fillFocus({ bucket, history, isChosen, isTroubled }, snapshot) {
  const instance = history.focus ?? { rate: bucket.rate }
  const { key, capacity = bucket.capacity, rate } = instance
  const burst = key === undefined ? bucket.burst : instance.burst
  const routes = snapshot.routes.filter(({ name }) => bucket.routes.includes(name))
  // A bucket with one key has exact figures. Of one key among several only the events are known, not their cost.
  const measured = (figure, kind) => (bucket.keys > 1 ? history.eventRate(kind, WINDOW) : history.rate(figure, WINDOW))
  put(byId('bucket-title'), bucket.name)
  put(
    byId('bucket-law'),
    `${rateText({ rate, quotaEnds: bucket.quotaEnds })}, holds ${amount(capacity)}${burst === undefined ? '' : `, bursts of ${count(burst)}`}`,
  )
  fillNames({ bucket, key, isChosen })
  put(byId('focus-in'), perSecond(measured('offered', 'arrivals')))
  const leaving = measured('released', 'releases')
  put(byId('focus-out'), perSecond(leaving))
  colour(byId('focus-out'), isTroubled && leaving === 0 && instance.waiting > 0 && 'bad')
  put(byId('focus-rejected'), perSecond(measured('rejected', 'rejections')))
  list(byId('flags'), flagsOf(bucket, instance, routes, snapshot), {
    nameOf: flag => flag.split(' ', 1)[0],
    create: () => make('li'),
    fill: put,
  })
  const figures = ['offered', 'released', 'rejected'].map(figure => perSecond(history.rate(figure, WINDOW)))
  const [into, out] = figures
  put(byId('rates-now'), `${into} in, ${out} out${bucket.keys <= 1 ? '' : `, ${count(bucket.keys)} keys`}`)
  const gaps = gapText(history, routes, rate)
  put(byId('strip-gaps'), gaps)

  const name = isChosen ? `${bucket.name}, ${keyName(key)}` : bucket.name
  if (described.name === name && Math.abs(snapshot.at - described.at) < DESCRIBE_EVERY) return
  described = { name, at: snapshot.at }
  describe({ name, bucket, instance, figures, gaps, wait: snapshot.wait })
}

function fillNames({ bucket, key, isChosen }) {
  const isOne = bucket.keys <= 1
  const isNamed = isChosen || (!isOne && key !== undefined)
  const [whose, among] = byId('bucket-key').children
  put(whose, `by ${bucket.key}${key === undefined ? '' : `: ${keyName(key)}`}`)
  put(among, isOne || key === undefined ? '' : `· one of the fullest of ${count(bucket.keys)}`)
  byId('all-keys').hidden = !isChosen
  const all = isOne ? '' : ', all keys'
  put(byId('rates-title'), `In against out${isChosen ? ` of ${keyName(key)}` : all}`)
  put(byId('strip-title'), isNamed ? `Every request of ${keyName(key)}` : 'Every request')
  put(byId('hour-bucket-title'), `The last hour of ${bucket.name}${isChosen ? ', all keys' : ''}`)
}

/** Why a bucket has a lower rate than it may have. The names of adaptive buckets are reserved. */
const rateFlag = ({ name }) => (/^adaptive(:|$)/.test(name) ? 'adapted to' : 'learned')

/** Short remarks on the state of a bucket; the first word of each tells them apart. */
function flagsOf(bucket, { blockedMs, tier, waiting, oldestMs, overriddenUntil }, routes, { members = [], shown }) {
  const { focus } = bucket
  const isPartlySeen = shown === undefined && focus !== undefined && focus.watchers < members.length
  const all = test => routes.length > 0 && routes.every(test)
  const blocked = blockedMs < 0 ? 'blocked until empty' : `blocked ${duration(blockedMs ?? 0)}`
  return [
    all(({ mode }) => mode === 'meter') && 'meter: passed on at once',
    all(({ dryRun }) => dryRun) && 'dry run: nothing is held',
    bucket.rate < bucket.configured &&
      `${rateFlag(bucket)} ${perSecond(bucket.rate)} of ${perSecond(bucket.configured)}`,
    blockedMs !== undefined && blocked,
    tier !== undefined && `tier ${tier}`,
    overriddenUntil !== undefined && `overridden until ${moment(overriddenUntil)}`,
    waiting > 0 && `${count(waiting)} waiting${oldestMs === undefined ? '' : `, the oldest for ${duration(oldestMs)}`}`,
    isPartlySeen && `requests of ${focus.watchers} of ${members.length} instances`,
  ].filter(Boolean)
}

function gapText(history, routes, rate) {
  const isShaped = routes.every(({ mode, dryRun }) => mode === 'shape' && !dryRun)
  const gap = gaps(history.events, rate)
  const measured = !isShaped || gap.count < 2 ? '' : `gap p50 ${duration(gap.p50)}, p99 ${duration(gap.p99)}, `
  return `${measured}1/r ${duration(1_000 / rate)}`
}

function describe({ name, bucket, instance, figures: [into, out, lost], gaps, wait }) {
  const { level = 0, capacity = bucket.capacity, rate } = instance
  const { quotaEnds } = bucket
  const law = quotaEnds === undefined ? `leaking ${perSecond(rate)}` : rateText(bucket)
  const [first] = bucket.fullest
  const held = first && (first.capacity === null ? `holds ${fullnessText(first)}` : `is ${fullnessText(first)} full`)
  const longest = wait.count > 0 ? `; the longest wait was ${duration(wait.max)}` : ''
  put(
    byId('summary'),
    `${name}: ${into} in, ${out} out, ${lost} turned away${longest}${held ? `; ${keyName(first.key)} ${held}` : ''}.`,
  )
  const labels = {
    bucket: `Leaky bucket ${name}: level ${levelText(level, capacity, 'of')}, ${law}`,
    rates: `The last minute of ${name}: now ${into} in, ${out} out, against a rate of ${perSecond(bucket.rate)}`,
    strip: `Arrivals and releases of the last ${duration(stripSpan(rate))}; ${gaps}`,
  }
  for (const [id, text] of Object.entries(labels)) canvases[id].setAttribute('aria-label', text)
}

/** Says what to do when there is nothing to show. */
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
    byId('notice').hidden = true
  }
}

function notice(title, text, command = '') {
  const [heading, paragraph, code] = byId('notice').children
  put(heading, title)
  put(paragraph, text)
  put(code, command)
  code.hidden = command === ''
  byId('notice').hidden = false
}

const all = what => document.querySelectorAll(`[data-shaper="${what}"]`)
const start = Date.now()
let { until, wait, position, stream } = JSON.parse(document.getElementById('shaper-told').textContent)
let toldAt = start
let isLive = false
let isGoing = false

const say = (what, text) => {
  for (const element of all(what)) if (element.textContent !== text) element.textContent = text
}

// Until the month of a quota is over: when, in the words of the reader.
const ON = { day: 'numeric', month: 'long', hour: '2-digit', minute: '2-digit' }

const inWords = ms => {
  const s = Math.max(1, Math.ceil(ms / 1000))
  if (s >= 172800) return new Date(Date.now() + ms).toLocaleString([], ON)
  return s < 120 ? `${s} s` : s < 7200 ? `${Math.ceil(s / 60)} min` : `${Math.ceil(s / 3600)} h`
}

const show = () => {
  const now = Date.now()
  const left = Math.max(0, toldAt + wait - now)
  say('wait', inWords(left))
  say('position', position === undefined ? '' : `${Math.max(1, Math.ceil((position * left) / wait))}`)
  for (const element of all('progress')) element.value = (now - start) / (now - start + left || 1)
  // The stream says when. Where there is none, or it is silent, the last word counts.
  if (now >= toldAt + until + (isLive ? 3000 : 0)) go()
}

const go = () => {
  if (isGoing) return
  isGoing = true
  source?.close()
  for (const element of all('status')) say('status', element.dataset.turn ?? element.textContent)
  // However the answers are, no more than a few requests a second.
  setTimeout(() => location.reload(), start + 300 - Date.now())
}

const source = stream && new EventSource(`${stream}?for=${encodeURIComponent(location.pathname + location.search)}`)
if (source) {
  source.onmessage = ({ data }) => {
    ;({ until, wait, position } = JSON.parse(data))
    toldAt = Date.now()
    isLive = true
    show()
  }
  source.onerror = () => {
    isLive = false
  }
  source.addEventListener('go', go)
  source.addEventListener('replaced', () => {
    source.close()
    isLive = false
  })
}
document.documentElement.dataset.shaperLive = ''
setInterval(show, 500)
show()

/** Who gets a page. */
import fc from 'fast-check'
import t from 'tap'
import { asksForPage } from '../../src/proxy/features/waiting-page.js'

const asks = (accept: string | undefined, method = 'GET', ...more: string[]): boolean =>
  asksForPage({ method, rawHeaders: [...(accept === undefined ? [] : ['Accept', accept]), ...more] })

t.test('browsers that ask for a page', async t => {
  const chromium =
    'text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8,application/signed-exchange;v=b3;q=0.7'
  t.ok(asks(chromium))
  t.ok(asks(chromium, 'GET', 'Sec-Fetch-Mode', 'navigate'))
  t.ok(asks('text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8'), 'Firefox and Safari')
  t.ok(asks('text/html, text/plain, text/css, text/sgml, */*;q=0.01'), 'lynx')
  t.ok(asks('text/html'))
  t.ok(asks('TEXT/HTML'))
  t.ok(asks('text/html, application/json'))
  t.ok(asks('application/json;q=0.5, text/html'))
  t.ok(asks('text/html;q=0.9, application/problem+json;q=0.8'))
})

t.test('everybody else', async t => {
  t.notOk(asks(undefined))
  t.notOk(asks('*/*'), 'curl and fetch')
  t.notOk(asks('text/*'))
  t.notOk(asks(''))
  t.notOk(asks('application/json, text/plain, */*'), 'axios')
  t.notOk(asks('application/json, text/html'))
  t.notOk(asks('text/html;q=0.5, application/json'))
  t.notOk(asks('text/html;q=0, */*'))
  t.notOk(asks('application/problem+json, text/html'))
  t.notOk(asks('image/avif,image/webp,*/*'))
  t.notOk(asks('x-text/html'))
  for (const mode of ['cors', 'no-cors', 'same-origin', 'websocket', 'navigate, cors'])
    t.notOk(asks('text/html', 'GET', 'Sec-Fetch-Mode', mode), mode)
  for (const method of ['HEAD', 'POST', 'PUT', 'get']) t.notOk(asks('text/html', method), method)
  t.notOk(asks(`text/html${',x/y'.repeat(300)}`), 'longer than any browser sends')
})

t.test('any header is read, and never takes long', async () => {
  const part = fc.constantFrom(
    'text/html',
    '*/*',
    'application/json',
    ';',
    ',',
    '"',
    '\\',
    'q=',
    '0.5',
    '=',
    ' ',
    '\t',
    'é',
  )
  const texts = fc.array(part, { maxLength: 200 }).map(parts => parts.join(''))
  fc.assert(fc.property(fc.oneof(texts, fc.string({ maxLength: 300 })), text => typeof asks(text) === 'boolean'))
})

t.test('HTML counts where it weighs more than JSON, wherever it stands', async () => {
  const quality = fc.integer({ min: 1, max: 1_000 }).map(thousandths => thousandths / 1_000)
  fc.assert(
    fc.property(quality, quality, fc.boolean(), (html, json, first) => {
      fc.pre(html !== json)
      const parts = [`text/html;q=${html}`, `application/json;q=${json}`]
      return asks((first ? parts : parts.reverse()).join(', ')) === html > json
    }),
  )
})

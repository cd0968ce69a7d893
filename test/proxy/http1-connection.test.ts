/** Clients that leave, or send slowly, at moments that only the connection sees. */
import t from 'tap'
import { connect, get, httpUpstream, OFF, ONE_A_SECOND, occupy, post, stalled, startRig, turns } from './harness.js'

t.test('requests behind a FIN are not sent to the upstream', async t => {
  const upstream = await httpUpstream(t, (_req, res) => res.end('x'.repeat(10_000)))
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  client.socket.pause()
  // The answers fill the buffers of the kernel. The last one waits for the client, and many requests behind it.
  client.send('GET / HTTP/1.1\r\nHost:h\r\n\r\n'.repeat(2_000))
  const answered = await stalled(() => rig.outcomes.length)
  client.socket.end()
  await turns()
  client.socket.resume()
  await client.end()
  await turns()
  t.ok(answered < 2_000, `${answered} answers`)
  t.equal(rig.outcomes.length, answered)
  t.equal(client.rest.split('HTTP/1.1 200').length - 1, answered, 'the client has them all')
})

for (const [title, behind] of [
  ['', ''],
  [', with a request behind it', get('/behind')],
]) {
  t.test(`a hang-up behind a body that has come whole is noticed at once${title}`, async t => {
    const upstream = await httpUpstream(t)
    const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
    await occupy(t, rig)
    const client = await connect(t, rig)
    client.send(post('x'.repeat(70_000)) + behind)
    await rig.until(({ queued }) => queued.length === 1)
    await turns()
    client.hangUp()
    t.equal((await rig.finished(2))[1], 'all cancelled 499')
  })
}

t.test(
  'a hang-up behind a body that the kernel has whole is noticed at the release, and the slot is the next one’s',
  async t => {
    const upstream = await httpUpstream(t)
    const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
    await occupy(t, rig)
    const client = await connect(t, rig)
    // More than is read while it waits.
    client.send(post('x'.repeat(200_000)))
    client.socket.end()
    await rig.until(({ queued }) => queued.length === 1)
    const next = await connect(t, rig)
    next.send(get('/next'))
    await rig.until(({ queued }) => queued.length === 2)
    if (!client.socket.writableFinished) await new Promise(resolve => client.socket.once('finish', resolve))
    rig.pacer.runUntil(1_000)
    t.equal((await next.answer()).status, 200)
    t.same((await rig.finished(3)).slice(1), ['all cancelled 499', 'all forwarded 200'])
    t.same(upstream.requests.slice(1), ['GET /next'])
  },
)

t.test('an upload that nobody wants is read as long as the client sends', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...OFF }, { virtualClock: true })
  const client = await connect(t, rig)
  client.send('OPTIONS * HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n')
  t.equal((await client.answer()).status, 501)
  for (let byte = 0; byte < 5; byte += 1) {
    rig.clock.runUntil(rig.clock.now() + 4_000)
    client.send('x')
    await turns()
  }
  t.equal((await client.ask(get())).status, 200)
})

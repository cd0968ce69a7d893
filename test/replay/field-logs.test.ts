/**
 * A log of each format against counts made another way: each line is split as awk does, one word is the client, another one the
 * time. `test/fixtures/logs` has logs that were once read wrongly, with personal details replaced; the others are those of
 * docs/replay.md.
 */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { FORMATS } from '../../src/replay/formats/format-names.js'
import { replay } from '../../src/replay/replay.js'
import { ROOT } from '../cli/command.js'
import { fixtureText, logFile, planOf } from './logs.js'

type Reader = (line: string) => string

const word =
  (at: number): Reader =>
  line =>
    line.trim().split(/\s+/).at(at)!
const after =
  (before: string, end = /[ \]",:]/): Reader =>
  line =>
    line.split(before)[1]!.split(end)[0]!
const field =
  (name: string): Reader =>
  line =>
    String((JSON.parse(line) as Record<string, unknown>)[name] ?? 0)

const ip = word(0)
const clf = after('[', / /)
const dateAndTime: Reader = line => `${word(0)(line)}T${word(1)(line)}Z`
const lastSeconds: Reader = line => String(1_000 * Number(word(-1)(line)))
const waitAndAnswer: Reader = line => String(Number(field('waitMs')(line)) + Number(field('upstreamMs')(line)))

/** The format, the client of a line, its time, and how long its request took in ms, by the name of a log. */
const LOGS: Readonly<Record<string, readonly [string, Reader, Reader, Reader?]>> = {
  'l01_compose.log': ['combined', word(2), word(5)],
  'l02_vhost.log': ['vhost', word(1), clf],
  'l03_vhostport.log': ['vhost', word(1), clf],
  'l04_ingress.log': ['combined', ip, clf, line => String(1_000 * Number(word(13)(line)))],
  'l04b_timed.log': ['combined', ip, clf, lastSeconds],
  'l05_jsonport.log': ['json', after('addr":"'), field('time')],
  'l06_jsonx.log': ['json', after('addr":"'), () => '26/Jun/2023:06:24:53'],
  'l07_dockerjson.log': ['combined', after('"log":"'), clf],
  'l08_cri.log': ['combined', word(3), clf],
  'l09_methods.log': ['combined', ip, clf],
  'l10_bomcrlf.log': ['combined', ip, clf],
  'l11_addr.log': [
    'common',
    line =>
      ip(line)
        .replace(/^::ffff:|,$|:5555$/g, '')
        .replace('0DB8:0::2', 'db8::1'),
    clf,
  ],
  'l14_user.log': ['combined', ip, line => `03${after('[03', / /)(line)}`],
  'l15_jsonmisc.log': ['json', field('client_ip'), field('timestamp'), field('latency_ms')],
  'apache-access.log': ['combined', ip, clf],
  'common.log': ['common', ip, clf],
  'alb.log': ['alb', line => word(3)(line).split(':')[0]!, word(1), () => '171'],
  'access-timed.log': ['combined', ip, clf, lastSeconds],
  'access-ingress.log': ['combined', ip, clf, line => String(1_000 * Number(word(13)(line)))],
  'access-balanced.log': ['combined', ip, clf],
  'other_vhosts_access.log': ['vhost', word(1), clf],
  'nginx.json.log': ['json', field('remote_addr'), field('msec'), () => '250'],
  'envoy.log': ['envoy', line => /"([\d.]+)[,"]/.exec(line)![1]!, after('[', /]/)],
  'envoy.json.log': ['json', after('address":"'), field('start_time')],
  'haproxy.log': ['haproxy', after(']: '), line => line.split('[')[2]!],
  'proxy-host-1_access.log': ['npm', after('[Client '), clf],
  'u_ex260203.log': ['w3c', word(8), dateAndTime, word(-1)],
  'cloudfront.gz': ['cloudfront', word(4), dateAndTime, lastSeconds],
  'syslog.log': ['combined', line => /192\.\S+/.exec(line)![0], line => line.split('[').at(-1)!],
  'containers.log': ['combined', line => /192\.\S+/.exec(line)![0], line => line.split('[').at(-1)!],
  '0a1b2c-json.log': ['combined', after('"log":"'), clf],
  'journal.export': ['combined', after('MESSAGE='), clf],
  'shaper.log': ['shaper', field('key'), field('time'), waitAndAnswer],
}

const ALB =
  'http 2026-02-03T10:00:02.186641Z app/lb/50dc 192.0.2.9:2817 10.0.0.1:80 0.086 0.048 0.037 200 200 0 57 "GET http://a:80/ HTTP/1.1" "-" - -'
const samples = new Map([
  ...[...readFileSync(`${ROOT}/docs/replay.md`, 'utf8').matchAll(/^```log (\S+)\n([\s\S]*?)^```$/gm)].map(
    ([, name, text]) => [name!, text!] as const,
  ),
  ['apache-access.log', fixtureText()],
  ['common.log', '192.0.2.1 - - [03/Feb/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 512\n'],
  ['alb.log', `${ALB}\n`],
])

/** The text of a log, as it is in its file. */
function textOf(name: string): string {
  return samples.get(name) ?? readFileSync(`${ROOT}/test/fixtures/logs/${name}`, 'utf8')
}

/** ms since 1970, of `03/Feb/2026:10:00:00`, ISO 8601, or seconds or ms since 1970. */
function moment(text: string): number {
  const [, day, month, year, time, fraction = ''] = /(\d\d)\/(\w{3})\/(\d{4}):([\d:]{8})(\.\d+)?/.exec(text) ?? []
  if (time !== undefined) return Date.parse(`${day} ${month} ${year} ${time}${fraction} UTC`)
  return /^\d+(\.\d+)?$/.test(text) ? Number(text) * (Number(text) < 1e11 ? 1_000 : 1) : Date.parse(text)
}

for (const [name, [format, client, time, took = () => '0']] of Object.entries(LOGS)) {
  t.test(`${name}: as many requests and clients, and the same first and last moment, as another count`, async t => {
    const text = textOf(name)
    const { requests, clients, bad, formats, from, to } = await replay(
      planOf([logFile(t, text, name)], { rate: '1/s', capacity: '5' }, { seed: undefined }),
    )
    const lines = text
      .replace(/^\ufeff/, '')
      .split('\n')
      .filter(line => line.trim() !== '' && !/^(?:#|__|SYSLOG_)|"msg":"listening"/.test(line))
    const moments = lines.map(line => moment(time(line)) - Number(took(line)))
    t.same(
      { bad, formats, requests, clients: clients.total, from, to },
      {
        bad: 0,
        formats: [format],
        requests: lines.length,
        clients: new Set(lines.map(client)).size,
        from: new Date(Math.min(...moments)).toISOString(),
        to: new Date(Math.max(...moments)).toISOString(),
      },
    )
  })
}

t.test('every format is counted', async t => {
  t.same([...new Set(Object.values(LOGS).map(([format]) => format))].sort(), Object.keys(FORMATS).sort())
})

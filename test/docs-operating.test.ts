/** The files for operators match the metrics and logs of shaper. */
import { execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { parse } from 'yaml'
import type { KeyState } from '../src/admin/keys/key-state.js'
import { keyLines } from '../src/cli/commands/key.js'
import { ROOT, shaper, shaperHere } from './cli/command.js'
import { blocks } from './docs-code.js'
import { promtool } from './servers/promtool.js'
import { until } from './servers/redis.js'

/** The metrics that users may rely on, and their labels. */
const PROMISED: Record<string, readonly string[]> = {
  shaper_requests_total: ['route', 'outcome'],
  shaper_responses_total: ['route', 'class'],
  shaper_upstream_responses_total: ['route', 'class'],
  shaper_rejections_total: ['route', 'bucket', 'reason'],
  shaper_dry_run_total: ['route', 'outcome'],
  shaper_queue_wait_seconds: [],
  shaper_queued: ['route'],
  shaper_release_lateness_seconds: [],
  shaper_upstream_in_flight: ['upstream', 'server'],
  shaper_upstream_seconds: [],
  shaper_waiting_pages: [],
  shaper_upstream_up: ['upstream', 'server'],
  shaper_keys: ['bucket'],
  shaper_limit: ['bucket'],
  shaper_capacity: ['bucket'],
  shaper_store_seconds: [],
  shaper_store_errors_total: [],
  shaper_config_reloads_total: ['result'],
  shaper_config_last_reload_success: [],
  shaper_event_loop_lag_seconds: [],
  shaper_build_info: ['version', 'node'],
}

/** They need a database: test/deliver/processes.test.ts asks for them. */
const OF_DELIVERIES: Record<string, readonly string[]> = {
  shaper_deliveries: ['route', 'state'],
  shaper_delivery_oldest_seconds: ['route', 'state'],
  shaper_delivery_attempts_total: ['route', 'result'],
}

/** What Prometheus adds to what it scrapes. */
const ADDED = ['instance', 'job']

const OUTCOMES = ['forwarded', 'rejected', 'cancelled', 'expired', 'failed', 'refused', 'accepted']

interface Rule {
  readonly alert: string
  readonly expr: string
  readonly for?: string
  readonly labels: { readonly severity: string }
  readonly annotations: { readonly summary: string }
}

interface AlertTest {
  readonly alertname: string
  readonly exp_alerts: readonly unknown[]
}

interface Panel {
  readonly id: number
  readonly title: string
  readonly type: string
  readonly gridPos: { readonly x: number; readonly y: number; readonly w: number; readonly h: number }
  readonly datasource: { readonly uid: string }
  readonly targets: readonly { readonly expr: string; readonly legendFormat: string }[]
}

interface Dashboard {
  readonly schemaVersion: number
  readonly templating: { readonly list: readonly { readonly name: string; readonly type: string }[] }
  readonly panels: readonly Panel[]
}

function doc(name: string): string {
  return readFileSync(`${ROOT}/docs/${name}`, 'utf8')
}

function rules(): Rule[] {
  const { groups } = parse(doc('alerts.yml')) as { groups: { rules: Rule[] }[] }
  return groups.flatMap(group => group.rules)
}

const dashboard = (): Dashboard => JSON.parse(doc('grafana-dashboard.json')) as Dashboard

/** The address of the admin API of a program that is ready: its log may come after the line that says so. */
async function adminOf({ stderr }: { stderr(): string }): Promise<string> {
  const told = (): string | undefined => /"url":"http:\/\/([^"]+)"/.exec(stderr())?.[1]
  await until('it says where', async () => told() !== undefined)
  return told()!
}

/** What a program that has had some traffic tells Prometheus. */
const scraped = (async (): Promise<string> => {
  const cwd = mkdtempSync(join(tmpdir(), 'shaper-operating-'))
  const config = {
    listen: '127.0.0.1:0',
    admin: { listen: '127.0.0.1:0' },
    upstream: 'echo:',
    buckets: { client: { rate: '1/h', capacity: 1, limits: { file: 'customers.csv' } } },
    routes: [
      { name: 'dry', match: { path: '/dry' }, dryRun: true },
      { name: 'api', match: { path: '/api' } },
    ],
  }
  writeFileSync(`${cwd}/shaper.config.json`, JSON.stringify(config))
  writeFileSync(`${cwd}/customers.csv`, 'key,rate\n192.0.2.1,5/s\n')
  const command = shaper(['start'], { cwd })
  const url = await command.url
  for (const path of ['/api', '/api', '/dry', '/dry', '/nowhere']) await fetch(url + path)
  const admin = `http://${await adminOf(command)}`
  const text = await (await fetch(`${admin}/metrics`)).text()
  command.child.kill('SIGTERM')
  await command.finished
  rmSync(cwd, { recursive: true })
  return text
})()

/** Each metric by its name in the text, with its labels. */
async function told(): Promise<Map<string, Set<string>>> {
  const found = new Map(Object.entries(OF_DELIVERIES).map(([name, labels]) => [name, new Set(labels)]))
  for (const [, name, labels = ''] of (await scraped).matchAll(/^(\w+)(?:\{(.*)\})? \S+$/gm)) {
    const known = found.get(name!) ?? new Set()
    found.set(name!, known)
    for (const [, label] of labels.matchAll(/(\w+)="/g)) known.add(label!)
  }
  return found
}

t.test('every promised metric is exported with its labels, and is in docs/operating.md', async t => {
  const found = await told()
  const page = doc('operating.md')
  for (const [name, labels] of Object.entries(PROMISED)) {
    const known = found.get(name) ?? found.get(`${name}_bucket`)
    t.ok(known, name)
    for (const label of labels) t.ok(known?.has(label), `${name} has ${label}`)
  }
  for (const name of new Set([...found.keys()].map(baseOf))) {
    const row = page.split('\n').find(line => line.startsWith(`| \`${name}\` |`))
    t.ok(row, `${name} is in docs/operating.md`)
    const labels = [...(found.get(name) ?? found.get(`${name}_bucket`) ?? [])].filter(label => label !== 'le')
    for (const label of labels) t.ok(row?.includes(`\`${label}\``), `its label ${label}, too`)
  }
  for (const outcome of OUTCOMES) t.ok(page.includes(`| \`${outcome}\` |`), outcome)
})

function baseOf(name: string): string {
  return name.replace(/(?<=_seconds)_(bucket|sum|count)$/, '')
}

t.test('promtool finds nothing wrong with the metrics', async t => {
  const text = await scraped
  const { status, output } = promtool(['check', 'metrics'], text)
  t.equal(output, '')
  t.equal(status, 0)
  t.not(promtool(['check', 'metrics'], text.replaceAll('shaper_requests_total', 'shaper_requests')).status, 0)
})

t.test('promtool: the alerts are valid, and each fires where it should and nowhere else', async t => {
  const checked = promtool(['check', 'rules', `${ROOT}/docs/alerts.yml`])
  t.equal(checked.status, 0, checked.output)
  const file = `${ROOT}/test/fixtures/alerts-test.yml`
  const tested = promtool(['test', 'rules', file])
  t.equal(tested.status, 0, tested.output)
  const { tests } = parse(readFileSync(file, 'utf8')) as { tests: { alert_rule_test: AlertTest[] }[] }
  const cases = tests.flatMap(each => each.alert_rule_test)
  for (const { alert } of rules()) {
    const own = cases.filter(({ alertname }) => alertname === alert)
    t.ok(
      own.some(each => each.exp_alerts.length > 0),
      `${alert} fires`,
    )
    t.ok(
      own.some(each => each.exp_alerts.length === 0),
      `${alert} does not`,
    )
  }
})

t.test('the alerts are on existing metrics, and docs/operating.md says what to do', async t => {
  const found = await told()
  const page = doc('operating.md')
  const all = rules()
  t.ok(all.length >= 7)
  t.equal(new Set(all.map(({ alert }) => alert)).size, all.length)
  for (const { alert, expr, labels, annotations, for: lasting = '1m' } of all) {
    checkExpression(t, expr, found)
    t.match(lasting, /^\d+[smh]$/, alert)
    t.ok(['page', 'ticket'].includes(labels.severity), alert)
    t.ok(annotations.summary.length > 10, alert)
    t.ok(page.includes(`\`${alert}\``), `${alert} is in docs/operating.md`)
  }
})

t.test('the Grafana dashboard uses existing metrics of one data source', async t => {
  const found = await told()
  const { schemaVersion, templating, panels } = dashboard()
  t.ok(schemaVersion >= 38, 'Grafana 10')
  t.match(templating.list, [{ name: 'datasource', type: 'datasource' }])
  t.equal(templating.list.length, 1)
  t.equal(new Set(panels.map(({ id }) => id)).size, panels.length)
  const expressions = panels.flatMap(({ targets }) =>
    targets.map(({ expr }) => expr.replaceAll('$__rate_interval', '5m')),
  )
  const file = `${t.testdir()}/rules.yml`
  const asRules = expressions.map((expr, place) => ({ record: `panel:${place}`, expr }))
  writeFileSync(file, JSON.stringify({ groups: [{ name: 'panels', rules: asRules }] }))
  const checked = promtool(['check', 'rules', file])
  t.equal(checked.status, 0, checked.output)
  for (const expr of expressions) checkExpression(t, expr, found)
  for (const { title, datasource, targets, gridPos } of panels) {
    // biome-ignore lint/suspicious/noTemplateCurlyInString: Grafana's own
    t.equal(datasource.uid, '${datasource}', title)
    t.ok(targets.length > 0, title)
    t.ok(gridPos.x + gridPos.w <= 24, title)
  }
  for (const [place, panel] of panels.entries()) {
    for (const other of panels.slice(place + 1)) t.notOk(overlap(panel.gridPos, other.gridPos), panel.title)
  }
  const asked = expressions.join('\n')
  for (const name of Object.keys(PROMISED)) t.ok(asked.includes(name), `${name} has a panel`)
})

function overlap(a: Panel['gridPos'], b: Panel['gridPos']): boolean {
  return a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h
}

/** Checks that its metrics and labels exist, and its outcomes are valid. */
function checkExpression(t: Test, expression: string, found: ReadonlyMap<string, ReadonlySet<string>>): void {
  const selectors = [...expression.matchAll(/\b((?:shaper|process)_\w+|up\b)(?:\{([^}]*)\})?/g)]
  t.ok(selectors.length > 0, expression)
  const labels = new Set(ADDED)
  for (const [, name, matchers = ''] of selectors) {
    if (name !== 'up') t.ok(found.has(name!), `${name} in ${expression}`)
    const known = new Set([...ADDED, ...(found.get(name!) ?? [])])
    for (const label of known) labels.add(label)
    checkMatchers(t, matchers, known)
  }
  for (const [, names] of expression.matchAll(/\b(?:by|on|without)\s*\(([^)]*)\)/g)) {
    for (const label of names!.split(',')) t.ok(labels.has(label.trim()), `${label.trim()} in ${expression}`)
  }
}

function checkMatchers(t: Test, matchers: string, known: ReadonlySet<string>): void {
  for (const [, label, value] of matchers.matchAll(/(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"/g)) {
    t.ok(known.has(label!), `${label} in {${matchers}}`)
    if (label === 'outcome') for (const outcome of value!.split('|')) t.ok(OUTCOMES.includes(outcome), outcome)
  }
}

t.test('the systemd unit is valid, and leaves enough time to end', async t => {
  const unit = doc('shaper.service')
  const setting = (name: string): string | undefined => new RegExp(`^${name}=(.*)$`, 'm').exec(unit)?.[1]
  for (const name of ['DynamicUser', 'NoNewPrivileges', 'PrivateTmp']) t.equal(setting(name), 'yes')
  t.equal(setting('ProtectSystem'), 'strict')
  t.equal(setting('Type'), 'notify')
  t.equal(setting('NotifyAccess'), 'all', 'the main process does not send it itself')
  t.equal(setting('ExecReload'), '/bin/kill -HUP $MAINPID')
  t.ok(Number.parseInt(setting('TimeoutStopSec')!, 10) >= 30 + 5, 'above shutdownTimeout and the time to linger')
  t.ok(Number(setting('LimitNOFILE')) > 2 * 20_000, 'two sockets for each of maxConnections')
  t.match(setting('MemoryMax'), /^\d+[MG]$/)
  t.match(setting('ExecStart'), /^\/\S+\/shaper start -c \/etc\/shaper\/shaper\.config\.json$/)
  t.match(
    unit,
    /^RestartForceExitStatus=SIGHUP$/m,
    'a reload while Node boots ends it, which systemd takes for a clean end',
  )
  if (spawnSync('systemd-analyze', ['--version']).status !== 0) return t.comment('systemd-analyze is not here')
  const file = `${t.testdir()}/shaper.service`
  writeFileSync(file, unit.replace(/^ExecStart=\S+/m, `ExecStart=${process.execPath}`))
  const { status, stderr } = spawnSync('systemd-analyze', ['verify', file], { encoding: 'utf8' })
  t.equal(status, 0, stderr)
  t.notMatch(stderr, /shaper\.service/)
})

t.test(
  'the log: every field of a request is in docs/operating.md, and its hash is found as described there',
  async t => {
    const cwd = t.testdir({
      'shaper.config.json': JSON.stringify({
        listen: '127.0.0.1:0',
        upstream: 'echo:',
        buckets: { client: { key: 'header:x-key', rate: '5/s' } },
        routes: [{ name: 'api' }],
      }),
    })
    const { child, url, finished } = shaper(['start'], { cwd })
    const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
    await fetch(await url, { headers: { 'x-key': '192.0.2.7', traceparent } })
    child.kill('SIGTERM')
    const { stderr } = await finished
    const line = stderr.split('\n').find(each => each.endsWith('"msg":"request"}'))
    const { msg: _, ...fields } = JSON.parse(line!) as Record<string, unknown>
    const page = doc('operating.md')
    const table = page.slice(page.indexOf('| field | meaning |'))
    for (const name of Object.keys(fields)) {
      t.ok(
        table.split('\n').some(row => row.split('|')[1]?.includes(`\`${name}\``)),
        name,
      )
    }
    const [command] = /^printf .*sha256sum.*$/m.exec(page) ?? []
    t.equal(execFileSync('bash', ['-c', command!], { encoding: 'utf8' }).trim(), fields.key)
  },
)

t.test('page and documents say in the same words what a DELETE does', async t => {
  const words =
    'makes the bucket as new but for who waits: what has passed is forgotten and a block ends, so the first who waits ' +
    'leaves as soon as the rest of its stack allows and the others follow at r'
  const files = ['CHANGELOG.md', 'docs/operating.md', 'src/admin/dashboard/index.html']
  for (const file of files) {
    const text = readFileSync(`${ROOT}/${file}`, 'utf8').replaceAll(/\s+/g, ' ')
    t.ok(text.includes(words), file)
  }
})

t.test('the guide shows a key as `shaper key` does', async t => {
  const [, shown] = /^```\n(client: 203[^`]*)```$/m.exec(doc('guide.md'))!
  const state: KeyState = {
    ...{ at: 0, bucket: 'client', key: '203.0.113.7', hash: 'a1b2c3d4e5f6' },
    ...{ rate: 5, capacity: 10, level: 9, waiting: 8, queued: 8, inFlight: 0, predictedWaitMs: 1_800 },
    routes: { api: { predictedWaitMs: 1_800, waitsFor: 'bucket client', assumed: [] } },
    recent: [
      {
        ...{ at: Date.parse('2026-11-26T07:00:00Z'), route: 'api', outcome: 'forwarded', status: 200 },
        ...{ waitMs: 1_600, upstreamMs: 12 },
      },
    ],
  }
  t.equal(`${keyLines(state).join('\n')}\n`, shown)
})

t.test('the commands of the guide for one key work', async t => {
  const [block] = blocks('docs/guide.md', 'sh').filter(each => each.includes('curl -X PUT'))
  const cwd = t.testdir({
    'shaper.config.json': JSON.stringify({
      ...{ listen: '127.0.0.1:0', admin: { listen: '127.0.0.1:0' }, upstream: 'echo:' },
      buckets: { client: { key: 'ip', rate: '5/s', capacity: 10 } },
    }),
  })
  const command = shaper(['start'], { cwd })
  t.teardown(async () => {
    command.child.kill('SIGTERM')
    await command.finished
  })
  await fetch(await command.url)
  const admin = await adminOf(command)
  const [set, end] = block!.trim().split('\n')
  const run = (line: string): unknown =>
    JSON.parse(execFileSync('bash', ['-c', line.replace('localhost:9090', admin)], { stdio: 'pipe' }).toString())
  t.match(run(set!), { bucket: 'client', key: '203.0.113.7', rate: 50, capacity: 100, until: String })
  t.same(run(end!), { bucket: 'client', key: '203.0.113.7', until: 'now' })
  const found = await shaperHere(['key', '127.0', '--admin', `http://${admin}`])
  t.match(found.stdout, /^client +127\.0\.0\.1 +[\d.]+\/10 +0 +/m)
})

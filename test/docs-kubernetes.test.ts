/** The manifests of deploy/ agree with each other, with the configuration in them, and with what shaper does. */
import { spawnSync } from 'node:child_process'
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import t from 'tap'
import { request } from 'undici'
import { parse, parseAllDocuments } from 'yaml'
import { parseConfig } from '../src/config/load.js'
import { formatListen } from '../src/config/schema/address.js'
import { ROOT, shaper, shaperHere } from './cli/command.js'
import { startRedis, until } from './servers/redis.js'

const FOLDER = `${ROOT}/deploy/kubernetes`
const TOKEN = 'a-token-for-tests'
/** Where a log line says that the admin API listens. */
const ADMIN_URL = /"url":"(http[^"]+)"/
/** ms in which last answers are read after `shutdownTimeout`. */
const LINGER = 5_000

type Labels = Readonly<Record<string, string>>

interface Probe {
  readonly httpGet: { readonly path: string; readonly port: string }
}

interface Container {
  readonly image: string
  readonly args: readonly string[]
  readonly env: readonly { readonly name: string; readonly value?: string; readonly valueFrom?: unknown }[]
  readonly ports: readonly { readonly name: string; readonly containerPort: number }[]
  readonly readinessProbe: Probe
  readonly livenessProbe: Probe
  readonly resources: { readonly limits: { readonly cpu?: string; readonly memory: string } }
  readonly volumeMounts: readonly { readonly name: string; readonly mountPath: string; readonly subPath?: string }[]
}

interface Pod {
  readonly terminationGracePeriodSeconds: number
  readonly securityContext: { readonly runAsUser: number }
  readonly containers: readonly Container[]
  readonly volumes: readonly { readonly name: string; readonly configMap: { readonly name: string } }[]
}

interface Resource {
  readonly kind: string
  readonly metadata: { readonly name: string; readonly labels: Labels }
  readonly data: Labels
  readonly spec: {
    readonly replicas: number
    readonly maxUnavailable: number
    readonly selector: Labels & { readonly matchLabels: Labels }
    readonly template: { readonly metadata: { readonly labels: Labels }; readonly spec: Pod }
    readonly podSelector: { readonly matchLabels: Labels }
    readonly ingress: readonly {
      readonly from: readonly { readonly podSelector: { readonly matchLabels: Labels } }[]
      readonly ports: readonly { readonly port: number }[]
    }[]
    readonly ports: readonly { readonly name: string; readonly port: number; readonly targetPort: string }[]
    readonly endpoints: readonly {
      readonly port: string
      readonly path: string
      readonly authorization: { readonly credentials: { readonly name: string; readonly key: string } }
    }[]
  }
}

const files = readdirSync(FOLDER).filter(name => name.endsWith('.yaml'))
const resources = files
  .filter(name => name !== 'kustomization.yaml')
  .flatMap(name => parseAllDocuments(readFileSync(`${FOLDER}/${name}`, 'utf8')))
  .map(document => {
    if (document.errors.length > 0) throw document.errors[0]
    return document.toJS() as Resource
  })

function find(kind: string, name = 'shaper'): Resource {
  return resources.find(each => each.kind === kind && each.metadata.name === name)!
}

const deployment = find('Deployment').spec
const pod = deployment.template.spec
const [container] = pod.containers as [Container]
const text = find('ConfigMap').data['shaper.config.json']!
const settings = parseConfig(text, { env: { SHAPER_TOKEN: TOKEN } })
const dockerfile = readFileSync(`${ROOT}/Dockerfile`, 'utf8')

function selects(selector: Labels, labels: Labels): boolean {
  return Object.entries(selector).every(([name, value]) => labels[name] === value)
}

function portOf(name: string): number | undefined {
  return container.ports.find(port => port.name === name)?.containerPort
}

t.test('shaper check accepts the configuration, and warns of nothing in it', async t => {
  const cwd = t.testdir({ 'shaper.config.json': text })
  const { code, stderr } = await shaperHere(['check'], { cwd, env: { SHAPER_TOKEN: TOKEN } })
  t.equal(code, 0, stderr)
  t.same(stderr.match(/^warning: .*$/gm), null)
})

t.test('ports, labels and names agree', async t => {
  t.equal(formatListen(settings.listen[0]!), `0.0.0.0:${portOf('http')}`)
  t.equal(formatListen(settings.admin!.listen), `0.0.0.0:${portOf('admin')}`)
  t.ok(selects(deployment.selector.matchLabels, deployment.template.metadata.labels))
  t.ok(selects(find('PodDisruptionBudget').spec.selector.matchLabels, deployment.template.metadata.labels))
  for (const { spec } of resources.filter(({ kind }) => kind === 'Service')) {
    const [target] = resources.filter(
      each => each.kind === 'Deployment' && selects(spec.selector, each.spec.template.metadata.labels),
    )
    const names = target!.spec.template.spec.containers[0]!.ports.map(({ name }) => name)
    for (const { targetPort } of spec.ports) t.ok(names.includes(targetPort), targetPort)
  }
  t.match(find('Service').spec.ports, [{ name: 'http' }], 'the Service for clients has no admin port')
  const store = settings.store as { url: string; instances: number }
  const redis = new URL(store.url)
  t.equal(String(find('Service', redis.hostname).spec.ports[0]!.port), redis.port)
  t.equal(store.instances, deployment.replicas)
  t.ok(deployment.replicas > find('PodDisruptionBudget').spec.maxUnavailable, 'one pod is always left')
})

t.test('only the pods of shaper reach Redis', async t => {
  const { podSelector, ingress } = find('NetworkPolicy', 'shaper-redis').spec
  t.ok(selects(podSelector.matchLabels, find('Deployment', 'shaper-redis').spec.template.metadata.labels))
  const [{ from, ports }] = ingress as [(typeof ingress)[number]]
  t.ok(selects(from[0]!.podSelector.matchLabels, deployment.template.metadata.labels))
  t.equal(String(ports[0]!.port), new URL((settings.store as { url: string }).url).port)
})

t.test('nobody is trusted until somebody is named', async t => {
  t.same(settings.trustProxy, ['192.0.2.0/24'], 'a network for documentation')
})

t.test('Prometheus finds the admin port, its path and its token', async t => {
  const { selector, endpoints } = find('ServiceMonitor').spec
  const watched = resources.filter(
    ({ kind, metadata }) => kind === 'Service' && selects(selector.matchLabels, metadata.labels),
  )
  t.match(watched, [{ metadata: { name: 'shaper-admin' } }])
  const [{ port, path, authorization }] = endpoints as [(typeof endpoints)[number]]
  t.ok(watched[0]!.spec.ports.some(({ name }) => name === port))
  t.equal(path, '/metrics')
  const token = container.env.find(({ name }) => name === 'SHAPER_TOKEN')!
  t.match(token.valueFrom, { secretKeyRef: { ...authorization.credentials } })
  t.match(readFileSync(`${ROOT}/deploy/README.md`, 'utf8'), /create secret generic shaper --from-literal=token=/)
})

t.test('a pod has the time to end, and the memory for its limits', async t => {
  const { drainDelay, shutdownTimeout, maxQueued, maxConnections, maxKeys, bufferMemory } = settings.limits
  t.ok(drainDelay > 0)
  t.ok(pod.terminationGracePeriodSeconds * 1_000 >= drainDelay + shutdownTimeout + LINGER)
  // The formula of docs/operating.md, in MB.
  const needed = 1.5 * (200 + 0.008 * maxQueued + 0.01 * maxConnections + 0.0002 * maxKeys + bufferMemory / 2 ** 20)
  const limit = (Number(/^(\d+)Mi$/.exec(container.resources.limits.memory)![1]) * 2 ** 20) / 1e6
  t.ok(limit >= needed, `${limit} MB, ${needed} MB needed`)
  const options = container.env.find(({ name }) => name === 'NODE_OPTIONS')!.value!
  const heap = Number(/^--max-old-space-size=(\d+)$/.exec(options)![1])
  t.ok(Math.abs(heap / Number.parseInt(container.resources.limits.memory, 10) - 0.75) < 0.02)
  t.equal(container.resources.limits.cpu, undefined)
})

t.test('what runs is the image of the Dockerfile, with the configuration where its arguments look for it', async t => {
  t.equal(String(pod.securityContext.runAsUser), /^USER (\d+)$/m.exec(dockerfile)?.[1])
  const { version } = JSON.parse(readFileSync(`${ROOT}/package.json`, 'utf8')) as { version: string }
  t.match(container.image, new RegExp(`/shaper:${version.replaceAll('.', '\\.')}$`))
  const [mount] = container.volumeMounts as [Container['volumeMounts'][number]]
  t.same(container.args, ['start', '-c', `${mount.mountPath}/shaper.config.json`])
  t.equal(mount.subPath, undefined, 'a file mounted with subPath never changes')
  t.equal(pod.volumes.find(({ name }) => name === mount.name)?.configMap.name, 'shaper')
})

t.test('images have exact tags', async t => {
  const compose = readFileSync(`${ROOT}/compose.yaml`, 'utf8')
  const bases = [...dockerfile.matchAll(/^FROM (\S+)/gm)].map(([, image]) => image!)
  const images = [...compose.matchAll(/^ +image: (\S+)$/gm)].map(([, image]) => image!)
  const deployed = resources.flatMap(({ spec }) => spec?.template?.spec.containers.map(({ image }) => image) ?? [])
  // The image that compose.yaml builds has no tag.
  for (const image of [...bases, ...images.filter(each => each !== 'shaper'), ...deployed])
    t.match(image, /:\d+\.\d+\.\d+(-alpine(\d+\.\d+)?)?$/)
  t.equal(new Set(bases).size, 1)
})

t.test('kustomization.yaml has every file but that of the Prometheus operator', async t => {
  const { resources: listed } = parse(readFileSync(`${FOLDER}/kustomization.yaml`, 'utf8')) as { resources: string[] }
  const rest = files.filter(name => !['kustomization.yaml', 'servicemonitor.yaml'].includes(name))
  t.same([...listed].sort(), rest.sort())
  const { status, error, stderr } = spawnSync('kubectl', ['kustomize', FOLDER], { encoding: 'utf8' })
  if (error !== undefined) return t.comment('kubectl is not here')
  t.equal(status, 0, stderr)
})

t.test('long: the pod: its probes answer as Kubernetes wants, and it ends with 0 in its time', async t => {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  const config = text
    .replaceAll('0.0.0.0:8080', '127.0.0.1:0')
    .replaceAll('0.0.0.0:9090', '127.0.0.1:0')
    .replace('http://app:8000', 'echo:')
    .replace('redis://shaper-redis:6379', redis.url)
    .replace('"drainDelay": "10s"', '"drainDelay": "2s"')
  const cwd = t.testdir()
  writeFileSync(`${cwd}/shaper.config.json`, config)
  const args = container.args.map(each => (each.endsWith('.json') ? 'shaper.config.json' : each))
  const env = Object.fromEntries(container.env.map(({ name, value = TOKEN }) => [name, value]))
  const command = shaper(args, { cwd, env })
  t.teardown(() => {
    command.child.kill('SIGKILL')
  })
  const url = await command.url
  await until('it says where', async () => ADMIN_URL.test(command.stderr()))
  const admin = ADMIN_URL.exec(command.stderr())![1]!
  const ask = async (target: string, headers = {}): Promise<number> => {
    const { statusCode, body } = await request(target, { headers })
    await body.dump()
    return statusCode
  }
  for (const { httpGet } of [container.readinessProbe, container.livenessProbe])
    t.equal(await ask(admin + httpGet.path), 200)
  t.equal(await ask(`${admin}/metrics`), 401)
  t.equal(await ask(`${admin}/metrics`, { authorization: `Bearer ${TOKEN}` }), 200)
  t.equal(await ask(url), 200)
  await redis.stop()
  await until('the store is away', async () => /going on alone/.test(command.stderr()))
  t.equal(await ask(admin + container.readinessProbe.httpGet.path), 200, 'the pods go on without their store')
  t.equal(await ask(url), 200)
  command.child.kill('SIGTERM')
  await until('it says so', async () => /shutting down/.test(command.stderr()))
  t.equal(await ask(url), 200, 'and is still there for nodes that do not know yet')
  t.equal((await command.finished).code, 0)
})

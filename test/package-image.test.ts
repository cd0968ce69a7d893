/** The steps of the Dockerfile, without Docker: what is copied is enough to build, and what is left is enough to run. */
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { request } from 'undici'
import { ROOT } from './cli/command.js'
import { emptyDirectory, run } from './packed.js'

const dockerfile = readFileSync(`${ROOT}/Dockerfile`, 'utf8').replaceAll(/\\\n\s*/g, '')
const [build, image] = dockerfile.split(/^FROM .*$/m).slice(1) as [string, string]

function instructions(stage: string, name: string): string[] {
  return [...stage.matchAll(new RegExp(`^${name} (.*)$`, 'gm'))].map(([, rest]) => rest!)
}

/** The files of the repository that .dockerignore lets through. The last pattern that fits decides. */
async function contextFiles(): Promise<string[]> {
  const patterns = readFileSync(`${ROOT}/.dockerignore`, 'utf8')
    .split('\n')
    .filter(line => line !== '' && !line.startsWith('#'))
    .map(line => {
      const keeps = line.startsWith('!')
      const body = line
        .slice(keeps ? 1 : 0)
        .replaceAll('.', '\\.')
        .replaceAll('*', '[^/]*')
      return { keeps, regex: new RegExp(`^${body}(/|$)`) }
    })
  const { stdout } = await promisify(execFile)('git', ['ls-files', '-co', '--exclude-standard'], { cwd: ROOT })
  return stdout
    .split('\n')
    .filter(path => path !== '' && existsSync(join(ROOT, path)))
    .filter(path => patterns.findLast(({ regex }) => regex.test(path))?.keeps !== false)
}

t.test('the steps of the Dockerfile', { timeout: 180_000 }, async t => {
  const directory = emptyDirectory(t)
  const [context, app] = [join(directory, 'context'), join(directory, 'app')]
  for (const folder of [context, app]) mkdirSync(folder)
  const files = await contextFiles()
  for (const path of files) {
    mkdirSync(dirname(join(context, path)), { recursive: true })
    cpSync(join(ROOT, path), join(context, path))
  }
  t.notOk(
    files.some(path => /^(test|\.git|deploy|docs\/operating\.md)(\/|$)/.test(path)),
    'only what the build needs',
  )
  // What `npm ci` installs is here. `npm prune` would take it away.
  mkdirSync(join(context, 'node_modules'))
  for (const name of readdirSync(join(ROOT, 'node_modules')).filter(name => name !== '.cache'))
    symlinkSync(join(ROOT, 'node_modules', name), join(context, 'node_modules', name))
  const steps = instructions(build, 'RUN')
  t.same(steps, ['npm ci --ignore-scripts', 'npm run build', 'npm prune --omit=dev --ignore-scripts'])
  await run(context, process.execPath, 'scripts/build.js')

  for (const copy of instructions(image, 'COPY')) {
    const [from, ...paths] = copy.split(' ')
    t.equal(from, '--from=build')
    const target = paths.pop()!
    for (const path of paths.map(each => each.replace('/app/', ''))) {
      const to = join(app, target.endsWith('/') ? `${target}${basename(path)}` : target)
      if (path === 'node_modules') symlinkSync(join(ROOT, 'node_modules'), to)
      else cpSync(join(context, path), to, { recursive: true })
    }
  }
  const config = join(app, 'shaper.config.json')
  const text = readFileSync(config, 'utf8')
  t.match(text, '"listen": "0.0.0.0:8080"', 'it can be reached from outside the container')
  t.match(instructions(image, 'HEALTHCHECK')[0], "connect(8080, '127.0.0.1')")
  writeFileSync(config, text.replace('0.0.0.0:8080', '127.0.0.1:0'))
  const entry = JSON.parse(instructions(image, 'ENTRYPOINT')[0]!) as string[]
  t.same(entry.slice(0, 2), ['/sbin/tini', '--'])
  const args = [...entry.slice(3), ...(JSON.parse(instructions(image, 'CMD')[0]!) as string[])]
  t.equal(entry[2], 'node')
  const child = spawn(process.execPath, args, { cwd: app, env: { NODE_ENV: 'production' } })
  t.teardown(() => child.kill('SIGKILL'))
  const [line] = await once(child.stdout, 'data')
  const url = /http\S+/.exec(String(line))![0]
  const { statusCode, body } = await request(url)
  await body.dump()
  t.equal(statusCode, 200)
  child.kill('SIGTERM')
  const [code] = await once(child, 'exit')
  t.equal(code, 0)
})

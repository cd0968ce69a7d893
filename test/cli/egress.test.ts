/** Programs that know nothing of shaper, with a changed environment or base URL alone. */
import { execFile, spawn } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { createServer, type RequestListener } from 'node:http'
import { createServer as createSecureServer } from 'node:https'
import type { AddressInfo, Server } from 'node:net'
import { promisify } from 'node:util'
import t, { type Test } from 'tap'
import { makeCertificate } from '../servers/certificate.js'
import { shaper } from './command.js'

const run = promisify(execFile)

async function listen(t: Test, server: Server & { closeAllConnections(): void }): Promise<number> {
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => {
    server.close()
    server.closeAllConnections()
  })
  return (server.address() as AddressInfo).port
}

/** Serves the repositories of a folder below `/git`, and tells of all else what it has seen. */
function handler(repositories: string): RequestListener {
  return (req, res) => {
    const { pathname, search } = new URL(`http://x${req.url}`)
    if (!pathname.startsWith('/git/')) {
      res.end(JSON.stringify({ method: req.method, url: req.url, headers: req.headers }))
      return
    }
    const backend = spawn('git', ['http-backend'], {
      env: {
        ...process.env,
        GIT_PROJECT_ROOT: repositories,
        GIT_HTTP_EXPORT_ALL: '1',
        PATH_INFO: pathname.slice('/git'.length),
        QUERY_STRING: search.slice(1),
        REQUEST_METHOD: req.method,
        CONTENT_TYPE: req.headers['content-type'] ?? '',
        HTTP_CONTENT_ENCODING: req.headers['content-encoding'] ?? '',
      },
    })
    req.pipe(backend.stdin)
    const parts: Buffer[] = []
    backend.stdout.on('data', (part: Buffer) => parts.push(part))
    backend.on('close', () => {
      const all = Buffer.concat(parts)
      const end = all.indexOf('\r\n\r\n')
      for (const line of all.toString('latin1', 0, end).split('\r\n')) {
        const [name = '', value = ''] = line.split(': ')
        if (name.toLowerCase() === 'status') res.statusCode = Number.parseInt(value, 10)
        else res.setHeader(name, value)
      }
      res.end(all.subarray(end + 4))
    })
  }
}

t.test('long: curl, Python and git through a proxy in the environment, and with a base URL', async t => {
  const dir = t.testdir({ repositories: {}, work: { 'file.txt': 'content\n' } })
  const { cert, key } = makeCertificate(`${dir}/localhost`, 'DNS:localhost')
  const serve = handler(`${dir}/repositories`)
  const plain = await listen(t, createServer(serve))
  const secure = await listen(t, createSecureServer({ cert: readFileSync(cert), key: readFileSync(key) }, serve))
  const allow = [plain, secure].flatMap(port => [`localhost:${port}`, `127.0.0.1:${port}`])
  const config = {
    listen: '127.0.0.1:0',
    egress: { allow, upstream: { tls: { ca: cert } } },
    buckets: { host: { key: 'host', rate: '100/s', capacity: 50 } },
    routes: [{ name: 'apis' }],
  }
  writeFileSync(`${dir}/egress.json`, JSON.stringify(config))
  const { child, ready, url, stderr, finished } = shaper(['start', '--egress', '-c', `${dir}/egress.json`])
  t.teardown(() => void child.kill('SIGKILL'))
  t.equal((await ready).replace(/^.* -> /, ''), allow.join(', '))
  const proxy = await url
  const { no_proxy: _lower, NO_PROXY: _upper, ...clean } = process.env
  const env = {
    ...clean,
    http_proxy: proxy,
    https_proxy: proxy,
    CURL_CA_BUNDLE: cert,
    SSL_CERT_FILE: cert,
    GIT_SSL_CAINFO: cert,
    GIT_CONFIG_NOSYSTEM: '1',
    HOME: dir,
  }
  const direct = { ...env, http_proxy: '', https_proxy: '' }
  const origins = [`http://localhost:${plain}`, `https://localhost:${secure}`]
  const based = origins.map(origin => `${proxy}/${origin.replace('://', '/')}`)

  for (const [environment, bases] of [
    [env, origins],
    [direct, based],
  ] as const) {
    for (const base of bases) {
      const { stdout: curled } = await run('curl', ['-sS', `${base}/a?b=1`], { env: environment })
      t.match(JSON.parse(curled), { url: '/a?b=1', headers: { host: /^localhost:\d+$/ } }, `curl ${base}`)
      const program = `import urllib.request as r, sys; print(r.urlopen(sys.argv[1]).read().decode())`
      const { stdout: read } = await run('python3', ['-c', program, `${base}/p`], { env: environment })
      t.match(JSON.parse(read), { method: 'GET', url: '/p' }, `Python ${base}`)
    }
  }

  const git = (...args: string[]) => run('git', args, { env, cwd: `${dir}/work` })
  await git('init', '-q', '-b', 'main', '.')
  await git('add', '.')
  await git('-c', 'user.name=t', '-c', 'user.email=t@example.test', 'commit', '-q', '-m', 'one')
  await git('clone', '-q', '--bare', '.', `${dir}/repositories/r.git`)
  for (const [index, base] of [...origins, ...based].entries()) {
    const environment = base.startsWith(proxy) ? direct : env
    await run('git', ['clone', '-q', `${base}/git/r.git`, `${dir}/clone${index}`], { env: environment })
    t.equal(readFileSync(`${dir}/clone${index}/file.txt`, 'utf8'), 'content\n', `git ${base}`)
  }
  const instead = ['-c', `url.${based[1]}/.insteadOf=https://code.example/`]
  await run('git', [...instead, 'clone', '-q', 'https://code.example/git/r.git', `${dir}/instead`], { env: direct })
  t.equal(readFileSync(`${dir}/instead/file.txt`, 'utf8'), 'content\n')

  const refused = await run('curl', ['-sS', '-f', 'http://other.test/'], { env }).catch((error: Error) => error)
  t.match(String(refused), /403/)

  child.kill('SIGTERM')
  const { code } = await finished
  t.equal(code, 0, stderr())
  const lines = stderr().split('\n')
  t.ok(lines.some(line => line.includes('CONNECT is paced for each connection')))
  t.ok(lines.some(line => /"route":"apis".*"method":"CONNECT","path":"localhost:\d+"/.test(line)))
})

t.test('check prints what is allowed, and says what is paced', async t => {
  const config = { egress: { allow: ['API.test:443'], token: 's3cret-of-16-and-more' }, buckets: { a: { rate: 1 } } }
  const dir = t.testdir({ 'shaper.config.json': JSON.stringify(config) })
  const { code, stdout, stderr } = await shaper(['check', '--egress'], { cwd: dir }).finished
  t.equal(code, 0, stderr)
  const { egress, upstream } = JSON.parse(stdout)
  t.match(egress, { allow: ['api.test:443'], token: '***', upstream: { learn: false } })
  t.equal(upstream, undefined)
  t.match(stderr, /CONNECT is paced for each connection/)
  t.notMatch(stdout + stderr, /s3cret/)
})

t.test('--egress needs a file that says what is allowed', async t => {
  const dir = t.testdir({ 'plain.json': JSON.stringify({ upstream: 'echo:', buckets: { a: { rate: 1 } } }) })
  const without = await shaper(['start', '--egress'], { cwd: dir }).finished
  t.equal(without.code, 2)
  t.match(without.stderr, /--egress needs a file that says what is allowed/)
  const other = await shaper(['check', '--egress', '-c', 'plain.json'], { cwd: dir }).finished
  t.equal(other.code, 2)
  t.match(other.stderr, /^shaper: --egress: the file does not say where requests may go/)
})

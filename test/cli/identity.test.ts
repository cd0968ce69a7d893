/** Keys from tokens in the program as it runs: with workers, with files that change, with an issuer that is away. */
import { writeFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { bearer, hs256, pem, rs256, SECRET, signer } from '../proxy/tokens.js'
import { shaper, shaperHere } from './command.js'

interface Test {
  teardown(run: () => unknown): void
}

const VALID = { sub: 'acme', exp: 4e9 }

function start(t: Test, cwd: string, jwt: object, ...args: string[]) {
  const config = {
    listen: '127.0.0.1:0',
    upstream: 'echo:',
    identity: { jwt },
    buckets: { user: { key: { from: 'jwt:sub', missing: 'reject' }, rate: '1/h', capacity: 3 } },
    routes: [{ name: 'all', mode: 'meter' }],
    admin: { listen: '127.0.0.1:0' },
  }
  writeFileSync(`${cwd}/shaper.config.json`, JSON.stringify(config))
  const command = shaper(['start', ...args], { cwd, env: { JWT_SECRET: SECRET } })
  t.teardown(async () => {
    command.child.kill('SIGTERM')
    await command.finished
  })
  return command
}

async function statusOf(url: string, token: string): Promise<number> {
  const [name, value] = bearer(token).split(': ') as [string, string]
  return (await fetch(url, { headers: { [name]: value, connection: 'close' } })).status
}

t.test('two workers count one user together, and a new public key is read', async t => {
  const [one, two] = [signer('one'), signer('two')]
  const cwd = t.testdir({ 'jwt.pem': pem(one) })
  const command = start(t, cwd, { publicKey: 'jwt.pem' }, '--workers', '2')
  const url = await command.url
  const statuses: number[] = []
  for (let count = 0; count < 6; count += 1) statuses.push(await statusOf(url, rs256(one, VALID)))
  t.same(statuses, [200, 200, 200, 429, 429, 429])
  t.equal(await statusOf(url, rs256(two, { ...VALID, sub: 'new' })), 400)
  writeFileSync(`${cwd}/jwt.pem`, pem(two))
  for (let left = 100; left > 0 && !command.stderr().includes('jwt.pem was read again'); left -= 1) await sleep(100)
  t.match(command.stderr(), /identity\.jwt\.publicKey: jwt\.pem was read again/)
  for (let left = 50; left > 0 && (await statusOf(url, rs256(one, VALID))) !== 400; left -= 1) await sleep(100)
  t.equal(await statusOf(url, rs256(two, { ...VALID, sub: 'new' })), 200)
})

t.test('an issuer that is away is told once, and no token is logged', async t => {
  const cwd = t.testdir()
  const command = start(t, cwd, { jwksUrl: 'http://127.0.0.1:1/keys' })
  const url = await command.url
  const token = rs256(signer('one'), VALID)
  for (let count = 0; count < 3; count += 1) t.equal(await statusOf(url, token), 400)
  const told = command.stderr().match(/"msg":"the public keys of tokens cannot be read[^"]*"/g) ?? []
  t.equal(told.length, 1)
  t.match(command.stderr(), /"url":"http:\/\/127\.0\.0\.1:1\/keys"/)
  t.notOk(command.stderr().includes(token.slice(0, 20)))
  const [, admin] = /"url":"(http:[^"]+)","msg":"the admin/.exec(command.stderr())!
  const metrics = await fetch(`${admin}/metrics`)
  t.match(await metrics.text(), /^shaper_identity_keys_last_read_success 0$/m)
})

t.test('a secret comes from the environment, and check does not show it', async t => {
  const cwd = t.testdir()
  const jwt = { secret: `\${JWT_SECRET}` }
  const command = start(t, cwd, jwt)
  t.equal(await statusOf(await command.url, hs256(SECRET, VALID)), 200)
  const { code, stdout, stderr } = await shaperHere(['check'], { cwd, env: { JWT_SECRET: SECRET } })
  t.equal(code, 0)
  t.match(stdout, /"secret": "\*\*\*"/)
  t.notOk((stdout + stderr).includes(SECRET))
  const unset = await shaperHere(['check'], { cwd })
  t.equal(unset.code, 2)
  t.match(unset.stderr, /^identity\.jwt\.secret: JWT_SECRET is not set|JWT_SECRET/)
})

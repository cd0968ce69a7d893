/** Passwords and TLS in the URL. */
import { execFileSync } from 'node:child_process'
import { chownSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { createPostgresStore } from '../../src/stores/postgres/store.js'
import { type PostgresServer, startPostgres } from '../servers/postgres.js'
import { bucket, clock } from './conformance.js'

let server: PostgresServer
let certificate: string

t.before(async () => {
  server = await startPostgres()
  certificate = join(server.data, 'server.crt')
  const key = join(server.data, 'server.key')
  const subject = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost']
  execFileSync(
    'openssl',
    ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', ...subject, '-keyout', key, '-out', certificate],
    { stdio: 'ignore' },
  )
  const { uid, gid } = statSync(server.data)
  for (const file of [certificate, key]) chownSync(file, uid, gid)
  await server.query(
    `SET password_encryption = 'scram-sha-256'; CREATE ROLE member LOGIN SUPERUSER PASSWORD 'p@ss/w:rd%'`,
  )
  const rules = join(server.data, 'pg_hba.conf')
  writeFileSync(
    rules,
    `hostssl all member all scram-sha-256\nhost all member all reject\n${readFileSync(rules, 'utf8')}`,
  )
  await server.query(`ALTER SYSTEM SET ssl = on`)
  await server.query('SELECT pg_reload_conf()')
})
t.teardown(() => server.close())

async function ask(t: Test, url: string): Promise<string> {
  const store = createPostgresStore({ url, table: 'shaper_buckets', timeout: 3_000, clock })
  t.teardown(() => store.close())
  try {
    const { admitted } = await store.admit({ stack: [bucket(1, 1)], cost: 1, maxWait: Infinity, claim: false })
    return admitted ? 'admitted' : 'rejected'
  } catch (error) {
    return (error as Error).message
  }
}

t.test('TLS is verified, and the password is checked', async t => {
  const password = encodeURIComponent('p@ss/w:rd%')
  const url = (mode: string, secret = password) =>
    `postgres://member:${secret}@localhost:${server.port}/postgres${mode === '' ? '' : `?sslmode=${mode}`}`
  const trusted = `&sslrootcert=${encodeURIComponent(certificate)}`
  const cases: [url: string, wanted: string | RegExp][] = [
    [url(`verify-full${trusted}`), 'admitted'],
    [url(`require${trusted}`), 'admitted'],
    [url('no-verify'), 'admitted'],
    [url('verify-full'), /self-signed certificate/],
    [url('require'), /self-signed certificate/],
    [url(`verify-full${trusted}`).replace('localhost', '127.0.0.1'), /does not match certificate/],
    [url('no-verify', 'wrong'), /password authentication failed/],
    [url(''), /rejects connection/],
  ]
  for (const [url, wanted] of cases) {
    const got = await ask(t, url)
    if (typeof wanted === 'string') t.equal(got, wanted, url)
    else t.match(got, wanted, url)
  }
})

/** The files that a configuration names: they are read when it is checked, not when they are first needed. */
import { readFileSync } from 'node:fs'
import { createSecureContext } from 'node:tls'
import type { Settings } from './settings.js'
import { quote } from './words.js'

/** What is wrong with them: each with its path in the configuration. */
export function fileFaults({ listen, routes }: Settings): { path: string; message: string }[] {
  const faults: { path: string; message: string }[] = []
  const read = (path: string, file: string): Buffer | undefined => {
    try {
      return readFileSync(file)
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException
      const fault = code === 'ENOENT' ? 'does not exist' : `cannot be read (${code})`
      faults.push({ path, message: `${quote(file)} ${fault}; name a PEM file` })
      return undefined
    }
  }
  const use = (path: string, file: string, options: object): void => {
    try {
      createSecureContext(options)
    } catch {
      faults.push({
        path,
        message: `${quote(file)} is no PEM file for this, or its key is another's; name one that is`,
      })
    }
  }
  if (listen.tls !== undefined) {
    const { cert, key } = listen.tls
    const [certificate, secret] = [read('listen.tls.cert', cert), read('listen.tls.key', key)]
    if (certificate !== undefined) use('listen.tls.cert', cert, { cert: certificate })
    if (secret !== undefined) use('listen.tls.key', key, { key: secret })
    if (faults.length === 0) use('listen.tls.key', key, { cert: certificate, key: secret })
  }
  const authorities = new Set(routes.flatMap(({ upstream }) => upstream.tls.ca ?? []))
  for (const file of authorities) {
    const ca = read('upstream.tls.ca', file)
    if (ca !== undefined) use('upstream.tls.ca', file, { ca })
  }
  return faults
}

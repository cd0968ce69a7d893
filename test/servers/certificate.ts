import { execFileSync } from 'node:child_process'

/** PEM files. */
export interface Certificate {
  readonly cert: string
  readonly key: string
}

/**
 * Makes a self-signed certificate that is its own authority.
 *
 * @param base path of its files, without `-cert.pem` and `-key.pem`
 * @param names as in a subjectAltName: `DNS:a.example`, `IP:127.0.0.1`
 */
export function makeCertificate(base: string, ...names: string[]): Certificate {
  const [cert, key] = [`${base}-cert.pem`, `${base}-key.pem`]
  const kind = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2']
  const subject = ['-subj', '/CN=test', '-addext', `subjectAltName=${names.join(',')}`]
  execFileSync('openssl', ['req', '-x509', ...kind, ...subject, '-keyout', key, '-out', cert], { stdio: 'ignore' })
  return { cert, key }
}

/**
 * Makes a certificate that an authority has signed.
 *
 * @param base as in `makeCertificate` @param name its CN
 */
export function signCertificate(base: string, authority: Certificate, name: string): Certificate {
  const [cert, key] = [`${base}-cert.pem`, `${base}-key.pem`]
  const kind = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2']
  const by = ['-CA', authority.cert, '-CAkey', authority.key, '-addext', 'basicConstraints=CA:FALSE']
  const files = ['-keyout', key, '-out', cert]
  execFileSync('openssl', ['req', '-x509', ...kind, ...by, '-subj', `/CN=${name}`, ...files], { stdio: 'ignore' })
  return { cert, key }
}

/** Requests about single keys: `/buckets/NAME/KEY`. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { KeySource } from '../keys/key-source.js'
import { readOverrideChange } from '../keys/override-change.js'
import { sendJson, sendProblem } from './answers.js'

/** Bytes of the body of a PUT. */
const MOST_BODY = 4_096

const NO_BUCKET = 'there is no such bucket'

/** Whose rate is found, not set. */
const ADAPTED = /^adaptive(:|$)/

export const KEY_METHODS = ['GET', 'HEAD', 'PUT', 'DELETE']

export async function serveKey(
  req: IncomingMessage,
  res: ServerResponse,
  source: KeySource,
  path: string,
): Promise<void> {
  const [, , bucket, key, ...rest] = path.split('/').map(decode)
  if (bucket === undefined || key === undefined || rest.length > 0) {
    return sendProblem(res, 400, 'use /buckets/NAME/KEY, both percent-encoded')
  }
  if (req.method === 'PUT') return servePut(req, res, source, { bucket, key })
  const answer = req.method === 'DELETE' ? await source.reset(bucket, key) : await source.key(bucket, key)
  if (answer !== undefined) sendJson(res, 200, answer)
  else sendProblem(res, 404, NO_BUCKET)
}

async function servePut(
  req: IncomingMessage,
  res: ServerResponse,
  source: KeySource,
  { bucket, key }: { readonly bucket: string; readonly key: string },
): Promise<void> {
  // A plain form of another site cannot have this type without asking first.
  if (!/^application\/json\s*(;|$)/i.test(req.headers['content-type'] ?? ''))
    return sendProblem(res, 415, 'send the change with Content-Type: application/json')
  const body = await readBody(req)
  if (body === undefined)
    return sendProblem(res, 413, `the body has more than ${MOST_BODY} bytes`, { Connection: 'close' })
  if (ADAPTED.test(bucket))
    return sendProblem(res, 409, 'the rate of this bucket is found from answers; set upstream.adapt')
  let change: ReturnType<typeof readOverrideChange>
  try {
    change = readOverrideChange(bucket, key, body, Date.now())
  } catch (error) {
    return sendProblem(res, 400, (error as Error).message)
  }
  const answer = await source.override(change)
  if (answer === undefined) sendProblem(res, 404, NO_BUCKET)
  else if (answer.status === 'set') sendJson(res, 200, answer.override)
  else if (answer.status === 'ended') sendJson(res, 200, { bucket, key, until: 'now' })
  else if (answer.status === 'absent') sendProblem(res, 404, 'this key has no override')
  else sendProblem(res, 409, '1,000 overrides last already; end one, or change the configuration')
}

/** Undefined: it is too long. */
function readBody(req: IncomingMessage): Promise<string | undefined> {
  return new Promise((resolve, reject) => {
    const parts: Buffer[] = []
    let length = 0
    req.on('data', (part: Buffer) => {
      length += part.length
      if (length > MOST_BODY) resolve(undefined)
      else parts.push(part)
    })
    req.once('end', () => resolve(Buffer.concat(parts).toString('utf8')))
    req.once('error', reject)
  })
}

function decode(part: string): string | undefined {
  try {
    return decodeURIComponent(part)
  } catch {
    return undefined
  }
}

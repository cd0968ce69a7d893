/** Requests about single keys: `/buckets/NAME/KEY`. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Fleet } from '../fleet/fleet.js'
import type { KeySource } from '../keys/key-source.js'
import { type KeyState, withOthers } from '../keys/key-state.js'
import { readOverrideChange } from '../keys/override-change.js'
import { type Reset, withWaitingElsewhere } from '../keys/reset.js'
import { keyTest, withFoundElsewhere } from '../keys/search.js'
import type { InstanceSnapshot } from '../snapshot/snapshot.js'
import { sendJson, sendProblem } from './answers.js'

/** Bytes of the body of a PUT. */
const MOST_BODY = 4_096

/** Characters of a text that keys are searched for. No key is longer. */
const LONGEST_QUERY = 128

const NO_BUCKET = 'there is no such bucket; GET /buckets lists them'

/** Buckets whose rate is found. It cannot be set. */
const ADAPTED = /^adaptive(:|$)/

export const KEY_METHODS = ['GET', 'HEAD', 'PUT', 'DELETE']

/** Where single keys are asked for: this program, and what others on its store list. */
export interface KeyRequests {
  readonly source: KeySource
  readonly fleet: Pick<Fleet, 'elsewhere'>
}

export async function serveSearch(res: ServerResponse, { source, fleet }: KeyRequests, text: string): Promise<void> {
  if (text === '' || text.length > LONGEST_QUERY)
    return sendProblem(
      res,
      400,
      `q is a text in a key, of 1 to ${LONGEST_QUERY} characters, or the hash of a key in the log`,
    )
  const test = keyTest(text)
  const found = await fleet.elsewhere((_, key) => test(key))
  sendJson(res, 200, withFoundElsewhere(await source.search(text), found))
}

export async function serveKey(
  req: IncomingMessage,
  res: ServerResponse,
  asked: KeyRequests,
  path: string,
): Promise<void> {
  const [, , bucket, key, ...rest] = path.split('/').map(decode)
  if (bucket === undefined || key === undefined || rest.length > 0) {
    return sendProblem(res, 400, 'use /buckets/NAME/KEY, both percent-encoded')
  }
  if (req.method === 'PUT') return servePut(req, res, asked.source, { bucket, key })
  const detail = await asked.source.whyNoKey(bucket, key)
  if (detail !== undefined) return sendProblem(res, 400, detail)
  const answer = await (req.method === 'DELETE' ? reset : stateOf)(asked, bucket, key)
  if (answer !== undefined) sendJson(res, 200, answer)
  else sendProblem(res, 404, NO_BUCKET)
}

async function stateOf({ source, fleet }: KeyRequests, bucket: string, text: string): Promise<KeyState | undefined> {
  const state = await source.key(bucket, text)
  return state && withOthers(state, await listedElsewhere(fleet, bucket, state.key))
}

async function reset({ source, fleet }: KeyRequests, bucket: string, text: string): Promise<Reset | undefined> {
  // A reset leaves the requests that wait in other instances, so they may be counted before it.
  const state = await source.key(bucket, text)
  const others = state && (await listedElsewhere(fleet, bucket, state.key))
  const own = await source.reset(bucket, text)
  return own && withWaitingElsewhere(own, others ?? [])
}

/** A key as other programs on the store list it. */
export async function listedElsewhere(
  fleet: KeyRequests['fleet'],
  bucket: string,
  key: string,
): Promise<readonly InstanceSnapshot[]> {
  const found = await fleet.elsewhere((name, each) => name === bucket && each === key)
  return found.map(({ instance }) => instance)
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
  else if (answer.status === 'wrong') sendProblem(res, 400, answer.detail)
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

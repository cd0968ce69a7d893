/**
 * The recipe of docs/outbound.md for SDKs and HTTP clients, with the clients themselves: their requests reach the server whole, and
 * one period apart.
 *
 * The SDKs of OpenAI and Anthropic are 50 MB. They are tested where they are installed:
 * `npm install --no-save openai@6 @anthropic-ai/sdk@1`
 */
import { buffer } from 'node:stream/consumers'
import t, { type Test } from 'tap'
import { Agent } from 'undici'
import { shape } from '../../src/index.js'
import { serve } from './upstreams.js'

const PERIOD = 100

/** A server that answers all with a JSON object, what came to it, and the fetch of the recipe. */
async function world(t: Test) {
  const came: { method: string; type: string; body: string }[] = []
  const { origin, seen } = await serve(t, async (req, res) => {
    const body = (await buffer(req)).toString()
    came.push({ method: req.method!, type: req.headers['content-type'] ?? '', body })
    res
      .setHeader('content-type', 'application/json')
      .end(JSON.stringify({ id: 'x', object: 'file', content: [], choices: [] }))
  })
  const agent = new Agent()
  t.teardown(() => agent.destroy())
  const dispatcher = agent.compose(shape({ rate: 1_000 / PERIOD }))
  const paced: typeof fetch = (input, init) => fetch(input, { ...init, dispatcher } as object)
  return { origin, seen, came, dispatcher, paced }
}

type World = Awaited<ReturnType<typeof world>>

const file = () => new File(['content'], 'file.txt')
const form = () => {
  const data = new FormData()
  data.set('file', file())
  return data
}
const prompt = { model: 'm', max_tokens: 5, messages: [{ role: 'user' as const, content: 'hello' }] }

// biome-ignore lint/suspicious/noExplicitAny: modules that may not be there have no types
type Any = any

const CLIENTS: readonly [name: string, use: (module: Any, world: World) => Promise<unknown>[]][] = [
  [
    'fetch',
    (_, { paced, origin }) => [
      paced(origin),
      paced(new Request(origin, { method: 'POST', body: '{"hello":1}' })),
      paced(origin, { method: 'POST', body: form() }),
    ],
  ],
  [
    '@octokit/core',
    ({ Octokit }, { paced, origin }) => {
      const octokit = new Octokit({ baseUrl: origin, request: { fetch: paced } })
      return [octokit.request('GET /user'), octokit.request('POST /user', { hello: 1 }), octokit.request('GET /repos')]
    },
  ],
  [
    'ky',
    ({ default: ky }, { paced, origin }) => {
      const client = ky.create({ fetch: paced, retry: 0 })
      return [client.get(origin), client.post(origin, { json: { hello: 1 } }), client.post(origin, { body: form() })]
    },
  ],
  [
    'axios',
    ({ default: axios }, { paced, origin }) => {
      const client = axios.create({ adapter: 'fetch', env: { fetch: paced } })
      return [client.get(origin), client.post(origin, { hello: 1 }), client.postForm(origin, form())]
    },
  ],
  [
    'openai',
    ({ default: OpenAI }, { paced, origin }) => {
      const client = new OpenAI({ baseURL: origin, apiKey: 'x', fetch: paced, maxRetries: 0 })
      return [
        client.models.list(),
        client.chat.completions.create(prompt),
        client.files.create({ file: file(), purpose: 'assistants' }),
      ]
    },
  ],
  [
    '@anthropic-ai/sdk',
    ({ default: Anthropic }, { paced, origin }) => {
      const client = new Anthropic({ baseURL: origin, apiKey: 'x', fetch: paced, maxRetries: 0 })
      return [client.models.list(), client.messages.create(prompt), client.beta.files.upload({ file: file() })]
    },
  ],
]

t.jobs = 3

for (const [name, use] of CLIENTS) {
  t.test(`${name}: three requests, whole and one period apart`, async t => {
    const module = name === 'fetch' ? undefined : await import(name).catch(() => undefined)
    if (module === undefined && name !== 'fetch') {
      t.ok(['openai', '@anthropic-ai/sdk'].includes(name), 'is installed')
      return t.pass('is not installed', { skip: true })
    }
    const here = await world(t)
    await Promise.all(use(module, here))
    t.equal(here.came.length, 3)
    // The first may be late by its grace, a period. Without a pace all come at once.
    const times = here.seen.map(({ at }) => at)
    const took = times.at(-1)! - times[0]!
    t.ok(took > PERIOD, `${took} ms`)
    t.ok(
      here.came.some(({ body }) => body.includes('hello')),
      'JSON',
    )
    const files = here.came.filter(({ type }) => type.startsWith('multipart/form-data'))
    t.equal(files.length, name === '@octokit/core' ? 0 : 1)
    for (const { body } of files) t.match(body, /filename="file\.txt"[\s\S]*content/)
  })
}

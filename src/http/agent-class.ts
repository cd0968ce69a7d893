import { isbot } from 'isbot'

/** `library`: a program that uses an HTTP client library and does not say what it is for. */
export type AgentClass = 'browser' | 'bot' | 'library' | 'empty'
export const AGENT_CLASSES: readonly AgentClass[] = ['browser', 'bot', 'library', 'empty']

/** HTTP client names at the start of a User-Agent. Lists of bots include some of them and miss others. */
const LIBRARIES =
  /^(?:curl|wget|httpie|python|aiohttp|httpx|requests|urllib|go-http|go-resty|okhttp|java|jakarta|apache-http|axios|node|undici|got|superagent|ruby|faraday|rest-client|php|guzzle|libwww|lwp|perl|dart|reqwest|hyper|ureq|postman|insomnia|k6|wrk|hey|ab|vegeta|scrapy|feign|restsharp|dotnet|\.net|alamofire|cfnetwork|dalvik|grpc|powershell|mozilla\/5\.0 \(.*windowspowershell)/i

/** Results remembered. Programs are few, but a User-Agent may contain anything. */
const REMEMBERED = 2_000
const known = new Map<string, AgentClass>()

export function classifyAgent(userAgent: string | undefined): AgentClass {
  if (userAgent === undefined || userAgent === '' || userAgent === '-') return 'empty'
  const before = known.get(userAgent)
  if (before !== undefined) return before
  const found = classify(userAgent)
  if (known.size >= REMEMBERED) known.clear()
  known.set(userAgent, found)
  return found
}

function classify(userAgent: string): AgentClass {
  if (LIBRARIES.test(userAgent)) return 'library'
  // A program that gives a contact address fetches pages by itself.
  if (/bot\b|crawl|spider|slurp|https?:/i.test(userAgent)) return 'bot'
  // `isbot` calls any program with a plain name a bot.
  if (!/^(?:Mozilla|Opera)\//.test(userAgent)) return 'library'
  return isbot(userAgent) ? 'bot' : 'browser'
}

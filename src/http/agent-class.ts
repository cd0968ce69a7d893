/** What kind of program sends a request, by what its User-Agent says. */
import { isbot } from 'isbot'

/** `library`: a program that calls an API or fetches pages, without saying more. */
export type AgentClass = 'browser' | 'bot' | 'library' | 'empty'

export const AGENT_CLASSES: readonly AgentClass[] = ['browser', 'bot', 'library', 'empty']

/** Names of HTTP clients at the beginning, which lists of bots count among them or leave out. */
const LIBRARIES =
  /^(?:curl|wget|httpie|python|aiohttp|httpx|requests|urllib|go-http|go-resty|okhttp|java|jakarta|apache-http|axios|node|undici|got|superagent|ruby|faraday|rest-client|php|guzzle|libwww|lwp|perl|dart|reqwest|hyper|ureq|postman|insomnia|k6|wrk|hey|ab|vegeta|scrapy|feign|restsharp|dotnet|\.net|alamofire|cfnetwork|dalvik|grpc|powershell|mozilla\/5\.0 \(.*windowspowershell)/i

/** How many are remembered: programs are few, what they call themselves may be anything. */
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
  // Who gives an address to complain to fetches pages on its own.
  if (/bot\b|crawl|spider|slurp|https?:/i.test(userAgent)) return 'bot'
  // `isbot` takes any program that names itself for a bot.
  if (!/^(?:Mozilla|Opera)\//.test(userAgent)) return 'library'
  return isbot(userAgent) ? 'bot' : 'browser'
}

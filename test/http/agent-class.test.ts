import t from 'tap'
import { type AgentClass, classifyAgent } from '../../src/http/agent-class.js'

const SAMPLES: [agent: string | undefined, kind: AgentClass][] = [
  [undefined, 'empty'],
  ['', 'empty'],
  ['-', 'empty'],
  [
    'Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Safari/537.36',
    'browser',
  ],
  [
    'Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 Version/17.5 Mobile Safari/604.1',
    'browser',
  ],
  ['Mozilla/5.0 (X11; Linux x86_64; rv:127.0) Gecko/20100101 Firefox/127.0', 'browser'],
  ['Opera/9.80 (Windows NT 6.1) Presto/2.12 Version/12.16', 'browser'],
  ['Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)', 'bot'],
  ['Mozilla/5.0 (compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)', 'bot'],
  ['Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; GPTBot/1.2; +https://openai.com/gptbot)', 'bot'],
  ['msnbot/2.0b (+http://search.msn.com/msnbot.htm)', 'bot'],
  ['Tiny Tiny RSS/1.11 (http://tt-rss.org/)', 'bot'],
  ['curl/8.5.0', 'library'],
  ['python-requests/2.32.3', 'library'],
  ['Go-http-client/1.1', 'library'],
  ['okhttp/4.12.0', 'library'],
  ['axios/1.7.2', 'library'],
  ['node', 'library'],
  ['Apache-HttpClient/4.5.14 (Java/17.0.9)', 'library'],
  ['acme-billing/3.1', 'library'],
]

t.test('user agents are classified', async t => {
  for (const [agent, kind] of SAMPLES) t.equal(classifyAgent(agent), kind, String(agent))
})

t.test('the cache of user agents is bounded, and answers stay the same', async t => {
  for (let count = 0; count < 5_000; count += 1) classifyAgent(`tool-${count}`)
  for (const [agent, kind] of SAMPLES) t.equal(classifyAgent(agent), kind)
})

/** The site of the documents: built, every link followed, and seen in a browser. */
import { execFile } from 'node:child_process'
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { extname, join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { openBrowser, openPage, says } from './admin/browser.js'
import { ROOT } from './cli/command.js'

const SITE = `${ROOT}/build/site`
const TYPES: Record<string, string> = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css' }

t.setTimeout(180_000)
const vitepress = `${ROOT}/node_modules/vitepress/bin/vitepress.js`
await promisify(execFile)(process.execPath, [vitepress, 'build', 'docs'], { cwd: ROOT })
const pages = readdirSync(SITE, { recursive: true, encoding: 'utf8' }).filter(
  path => path.endsWith('.html') && path !== '404.html',
)

/** The file that a web server gives for a path. Undefined: there is none. */
function fileOf(path: string): string | undefined {
  const file = join(SITE, decodeURI(path), path.endsWith('/') ? 'index.html' : '')
  return existsSync(file) && statSync(file).isFile() ? file : undefined
}

t.test('every document of the repository is a page', async t => {
  const folders = ['docs', 'deploy', 'examples'].flatMap(folder =>
    readdirSync(`${ROOT}/${folder}`, { recursive: true, encoding: 'utf8' }).map(path => `${folder}/${path}`),
  )
  const documents = [...readdirSync(ROOT), ...folders].filter(path => path.endsWith('.md'))
  const expected = documents.map(path => path.replace(/README\.md$/, 'index.md').replace(/md$/, 'html'))
  t.same(pages.toSorted(), expected.toSorted())
})

t.test('every link leads to a file and a heading', async t => {
  let followed = 0
  for (const page of pages) {
    const html = readFileSync(join(SITE, page), 'utf8')
    for (const [, link] of html.matchAll(/ (?:href|src)="([^"]+)"/g)) {
      if (/^(https?|data|mailto):/.test(link!)) continue
      followed += 1
      const { pathname, hash } = new URL(link!, `http://site/${page}`)
      const file = fileOf(pathname)
      if (file === undefined) t.fail(`${page}: ${link}`)
      else if (hash !== '' && !readFileSync(file, 'utf8').includes(` id="${decodeURI(hash.slice(1))}"`))
        t.fail(`${page}: no heading ${link}`)
    }
  }
  t.ok(followed > 1_000, `${followed} links`)
})

t.test('in a browser', async t => {
  const server = createServer((req, res) => {
    const file = fileOf(new URL(req.url!, 'http://site').pathname)
    if (file === undefined) return res.writeHead(404).end()
    res.writeHead(200, { 'Content-Type': TYPES[extname(file)] ?? 'application/octet-stream' }).end(readFileSync(file))
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => server.close())
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const browser = await openBrowser()
  t.teardown(() => browser.close())

  for (const colorScheme of ['light', 'dark'] as const) {
    await t.test(`it fits a desk and a phone, ${colorScheme}`, async t => {
      for (const path of ['/', '/docs/configuration.html', '/docs/benchmarks.html', '/docs/guide.html']) {
        const { page, faults, overhang } = await openPage(t, browser, url + path, { colorScheme })
        t.equal(await page.evaluate('document.documentElement.classList.contains("dark")'), colorScheme === 'dark')
        for (const width of [1_280, 375]) {
          await page.setViewportSize({ width, height: 800 })
          t.equal(await overhang(), 0, `${path} at ${width}`)
        }
        t.same(faults, [])
      }
    })
  }

  await t.test('the list of pages and the search lead to a document', async t => {
    const { page, faults } = await openPage(t, browser, url)
    await page.locator('.VPSidebar a', { hasText: 'semantics' }).click()
    await says(page, 'h1', 'What shaper does, exactly')
    await page.locator('.VPNavBarSearch button').first().click()
    await page.locator('.search-input').fill('levels over restarts')
    await page.locator('.results .result').first().click()
    await page.waitForURL(/\/docs\/configuration\.html#levels-over-restarts$/)
    t.same(faults, [])
  })
})

/** The site of the documents: `npm run docs` writes it to build/site. Pages are the files of the repository, at their own paths. */
import { existsSync, readFileSync } from 'node:fs'
import { cp, mkdir } from 'node:fs/promises'
import { dirname, join, posix, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitepress'

const root = join(dirname(fileURLToPath(import.meta.url)), '../..')
/** Files that pages link to and that are no pages, as paths from the root. */
const linked = new Set()

/** The table of documents in README is the list of pages: its first column, in its order. */
function documents() {
  const table = readFileSync(join(root, 'README.md'), 'utf8').split('## Documents')[1].split('\n## ')[0]
  return [...table.matchAll(/\[([^\]]+)\]\(([^)]+)\.md\)/g)].map(([, text, path]) => ({
    text,
    link: `/${path.replace(/README$/, '')}`,
  }))
}

/** Links between files of the repository become links between pages, or to a copy of the file. */
function linkFiles(md) {
  md.core.ruler.push('files', ({ tokens, env }) => {
    const links = tokens.flatMap(({ children }) => children ?? []).filter(({ type }) => type === 'link_open')
    for (const link of links) linkFile(link, env)
  })
}

function linkFile(link, { path: page }) {
  const href = link.attrGet('href')
  const [path] = href.split('#')
  if (path === '' || /^[a-z]+:/.test(path)) return
  if (path.endsWith('.md')) return link.attrSet('href', href.replace(/README\.md(?=#|$)/, 'index.md'))
  const file = relative(root, join(dirname(page), path))
  if (!existsSync(join(root, file))) throw new Error(`${page}: there is no ${path}`)
  linked.add(file)
  // VitePress leaves it as it is.
  link.attrSet('target', '_blank')
}

function slugify(heading) {
  return heading
    .toLowerCase()
    .replaceAll(/[^\w\- ]/g, '')
    .replaceAll(' ', '-')
}

export default defineConfig({
  title: 'shaper',
  description: 'A reverse proxy that turns bursts into an even stream',
  // No file for an icon.
  head: [['link', { rel: 'icon', href: 'data:,' }]],
  srcDir: '..',
  srcExclude: ['{.ci,.tap,build,dist,dist-core,src,test}/**'],
  outDir: '../build/site',
  cacheDir: '../node_modules/.cache/vitepress',
  // With the esbuild of this package (overrides), which cannot write the older form that Vite 5 asks for.
  vite: { build: { target: 'es2022' } },
  rewrites: id => id.replace(/(^|\/)README\.md$/, '$1index.md'),
  // Anchors as GitHub makes them.
  markdown: { config: linkFiles, anchor: { slugify }, languageAlias: { caddyfile: 'nginx', haproxy: 'nginx' } },
  // What the reader's own machine answers.
  ignoreDeadLinks: 'localhostLinks',
  themeConfig: {
    search: { provider: 'local' },
    sidebar: documents(),
    outline: [2, 3],
  },
  async buildEnd({ outDir }) {
    for (const file of linked) {
      await mkdir(join(outDir, posix.dirname(file)), { recursive: true })
      await cp(join(root, file), join(outDir, file))
    }
  },
})

import {world,check,brief} from './fuzz.mjs'
const seed=+process.argv[2],re=new RegExp(process.argv[3]??'STARVE|STALL')
let w=JSON.parse(JSON.stringify(world(seed)))
const fails=async w=>{try{return (await check(w)).out.filter(([k,m])=>re.test(k+' '+m))}catch(e){return []}}
let f=await fails(w);console.log('orig',f.length,brief(w));if(!f.length)process.exit()
const muts=[
 w=>w.jitter?{...w,jitter:0}:null,w=>w.isReal?{...w,isReal:false}:null,w=>w.kill?{...w,kill:false}:null,
 ...[0,1,2].map(b=>w=>w.stack.length>b&&w.stack.length>1?{...w,stack:w.stack.filter((_,i)=>i!==b),scope:w.scope.filter((_,i)=>i!==b),sources:w.sources.map(s=>({...s,keys:s.keys.filter((_,i)=>i!==b)}))}:null),
 ...[0,1,2,3,4,5].map(i=>w=>w.count>i&&w.count>2?{...w,count:w.count-1,dist:w.dist.filter((_,j)=>j!==i),sources:w.sources.filter(s=>s.instance!==i).map(s=>s.instance>i?{...s,instance:s.instance-1}:s)}:null),
 ...Array.from({length:14},(_,i)=>w=>w.sources.length>i+0&&w.sources.length>1?{...w,sources:w.sources.filter((_,j)=>j!==i)}:null),
 ...Array.from({length:14},(_,i)=>w=>w.sources[i]&&(w.sources[i].onOff||w.sources[i].from||w.sources[i].hangUp||w.sources[i].priority||w.sources[i].cost)?{...w,sources:w.sources.map((s,j)=>{if(j!==i)return s;const{instance,keys,load}=s;return{instance,keys,load}})}:null),
 ...[0,1,2].map(b=>w=>w.stack[b]?.burst||w.stack[b]?.overflow?{...w,stack:w.stack.map((l,i)=>i===b?{name:l.name,rate:l.rate,capacity:l.capacity}:l)}:null),
 ...[0,1,2,3,4,5].map(i=>w=>w.dist[i]>.25?{...w,dist:w.dist.map((d,j)=>j===i?.25:d)}:null),
 w=>w.end>10000?{...w,end:10000}:null,
]
for(let ch=true,n=0;ch&&n<4;n++){ch=false;for(const m of muts){const v=m(w);if(!v||!v.sources.length)continue;const g=await fails(v);if(g.length){w=v;f=g;ch=true}}}
console.log(brief(w));for(const x of f)console.log('  ',x.join(' '))
console.log(JSON.stringify(w))
